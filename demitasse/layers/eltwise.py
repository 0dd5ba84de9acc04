"""Eltwise: bottoms combined element by element, by product, weighted sum or maximum."""

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.io.proto import EltwiseParameter
from demitasse.layers.base import AtLeast, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import conflict, wrong_count, wrong_shapes
from demitasse.layers.registry import register_layer


@register_layer("Eltwise")
class Eltwise(Layer):
    """Combine bottoms by PROD, SUM with ``coeff``, or MAX; may run in place of the first.

    Of equal maxima, the first two bottoms' goes to the second; a later bottom wins only when it is
    larger. The winner gets the gradient.

    Source: Caffe, ``src/caffe/layers/eltwise_layer.cpp``.
    Shapes: bottoms all the same -> top the same.

    Raises:
        ConfigError: ``coeff`` is given for some of the bottoms only, or for a product.
        ShapeError: The bottoms have different shapes.
    """

    bottoms = AtLeast(2)
    tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.eltwise_param
        self.operation = EltwiseParameter.EltwiseOp.Name(p.operation)
        given = tuple(p.coeff)
        if given and len(given) != len(bottom):
            expected = f"0 or {len(bottom)}, one for each bottom"
            raise wrong_count("eltwise_param.coeff", len(given), expected)
        if given and self.operation == "PROD":
            message = "eltwise_param.coeff does not go with operation PROD"
            raise conflict("eltwise_param.coeff", message)
        self.coefficients = given or (1.0,) * len(bottom)
        self.stable = p.stable_prod_grad

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        for blob in bottom[1:]:
            if blob.shape != bottom[0].shape:
                raise wrong_shapes("Eltwise", "bottoms of one shape", bottom[0], blob)
        top[0].reshape_like(bottom[0])
        rule = bottom[0].shape, self.coefficients, self.stable
        self.op = ops.Eltwise(self.dtype, self.operation, *rule)  # type: ignore[arg-type]

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        if self.operation == "MAX":
            top[0].write(self._maximum(bottom))
            return
        terms = [blob.read() for blob in bottom]
        if self.operation == "SUM":
            total = self._weighted(terms[0], self.coefficients[0])
            for term, coefficient in zip(terms[1:], self.coefficients[1:], strict=True):
                total = total + self._weighted(term, coefficient)
        else:
            if bottom[0] is top[0]:
                self.saved("first factor", bottom[0].shape).write(terms[0])
            total = terms[0]
            for term in terms[1:]:
                total = total * term
        top[0].write(total)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        # backwards, since in place the first bottom's gradient is the top's
        for index in reversed(range(len(bottom))):
            if propagate_down[index]:
                bottom[index].write_diff(self._gradient(top, bottom, index))

    def _gradient(self, top: Blobs, bottom: Blobs, index: int) -> Array:
        dy = top[0].read_diff()
        if self.operation == "SUM":
            return self._weighted(dy, self.coefficients[index])
        if self.operation == "MAX":
            winner = self.saved("winner", top[0].shape, "int32").read()
            return self.xp.where(winner == index, dy, self.zeros(()))
        if not self.stable:
            return dy * (top[0].read() / self._factor(top, bottom, index))
        for other in range(len(bottom)):
            if other != index:
                dy = dy * self._factor(top, bottom, other)
        return dy

    def _factor(self, top: Blobs, bottom: Blobs, index: int) -> Array:
        if bottom[index] is top[0]:
            return self.saved("first factor", top[0].shape).read()
        return bottom[index].read()

    def _maximum(self, bottom: Blobs) -> Array:
        xp, x = self.xp, bottom[1].read()
        first = bottom[0].read() > x
        best = xp.where(first, bottom[0].read(), x)
        winner = xp.where(first, self.zeros((), "int32"), self.full((), 1, "int32"))
        for index in range(2, len(bottom)):
            x = bottom[index].read()
            larger = x > best
            best = xp.where(larger, x, best)
            winner = xp.where(larger, self.full((), index, "int32"), winner)
        self.saved("winner", bottom[0].shape, "int32").write(winner)
        return best

    @staticmethod
    def _weighted(term: Array, coefficient: float) -> Array:
        return term if coefficient == 1 else term * coefficient

"""BatchReindex and Filter: items chosen from a batch."""

from demitasse.backends.arrays import Array
from demitasse.layers.base import AtLeast, Blobs, Exactly, Flags, Layer, wrong_blobs
from demitasse.layers.checks import check_indices, wrong_shapes
from demitasse.layers.registry import register_layer


@register_layer("BatchReindex")
class BatchReindex(Layer):
    """Choose, repeat and order the items of a batch by a list of indices: y[i] = x[index[i]].

    The gradients of an item that was chosen several times add up.

    Source: Caffe, ``src/caffe/layers/batch_reindex_layer.cpp``.
    Shapes: bottoms x (N, ...), index (M,) -> top (M, ...).

    Raises:
        ShapeError: The indices are not a list, or one of them is not in the batch.
    """

    bottoms = Exactly(2)
    tops = Exactly(1)
    differentiable = (0,)
    dynamic_shapes = True  # the host checks the indices

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        if bottom[1].num_axes != 1 or not bottom[0].num_axes:
            raise wrong_shapes("BatchReindex", "items (N, ...) and indices (M,)", *bottom)
        top[0].reshape((bottom[1].count, *bottom[0].shape[1:]))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        check_indices(bottom[1], bottom[0].shape[0], "items in the batch", wait=True)
        top[0].write(self.xp.take(bottom[0].read(), self._indices(bottom), axis=0))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not propagate_down[0]:
            return
        xp, n = self.xp, bottom[0].shape[0]
        dy = xp.reshape(top[0].read_diff(), (bottom[1].count, bottom[0].count_from(1)))
        dx = self.device.backend.scatter_add(dy, self._indices(bottom), n)
        bottom[0].write_diff(xp.reshape(dx, bottom[0].shape))

    def _indices(self, bottom: Blobs) -> Array:
        return self.cast(bottom[1].read(), "int64")


@register_layer("Filter")
class Filter(Layer):
    """Pass on the selected items of every bottom but the last, which selects.

    An item is selected if its selector is not 0. The output size is known only during forward;
    before the first pass the tops have the size of all items.

    Source: Caffe, ``src/caffe/layers/filter_layer.cpp``.
    Shapes: bottoms (N, ...) ..., selector (N, 1, ...) -> tops (M, ...) ..., M at most N.

    Raises:
        NetError: There is not one top for every bottom but the last.
        ShapeError: The bottoms have different batch sizes, or the selector has more than one
            value for an item.
    """

    bottoms = AtLeast(2)
    tops = AtLeast(1)
    dynamic_shapes = True
    rows_axis = 0

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        if len(top) != len(bottom) - 1:
            message = (
                f"Filter takes one top for every bottom but the selector, got {len(top)} tops "
                f"for {len(bottom)} bottoms"
            )
            raise wrong_blobs(message, "tops", len(top), len(bottom) - 1)
        self.first, self.differentiable = True, range(len(top))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        selector = bottom[-1]
        if not selector.num_axes or selector.count != selector.shape[0]:
            raise wrong_shapes("Filter", "a selector with one value for each item", selector)
        for blob in bottom[:-1]:
            if not blob.num_axes or blob.shape[0] != selector.shape[0]:
                raise wrong_shapes("Filter", "bottoms of one batch size", blob, selector)
        self._choose(bottom, top)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self._choose(bottom, top)
        chosen = self._indices(self.chosen)
        for blob, source in zip(top, bottom, strict=False):
            blob.write(self.xp.take(source.read(), chosen, axis=0))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, n = self.xp, bottom[-1].count
        places, chosen = [0] * n, [False] * n  # of each item: index in the top, and True if chosen
        for place, item in enumerate(self.chosen):
            places[item], chosen[item] = place, True
        for blob, source, wanted in zip(top, bottom, propagate_down, strict=False):
            if not wanted:
                continue
            if not self.chosen:
                source.set_diff(0)
                continue
            dx = xp.take(blob.read_diff(), self._indices(places), axis=0)  # (N, ...)
            flags = xp.asarray(chosen, dtype=xp.bool, device=self.device.backend.array_device)
            flags = xp.reshape(flags, (n, *(1,) * (source.num_axes - 1)))
            source.write_diff(xp.where(flags, dx, self.zeros(())))

    def _choose(self, bottom: Blobs, top: Blobs) -> None:
        """Read the selector, whose values are known during a pass only."""
        flags = bottom[-1].cpu_data().reshape(-1) != 0
        self.chosen: list[int] = flags.nonzero()[0].tolist()
        count = flags.size if self.first else len(self.chosen)
        self.first, changed = False, False
        for blob, source in zip(top, bottom, strict=False):
            shape = (count, *source.shape[1:])
            changed |= blob.shape != shape
            blob.reshape(shape)
        if changed:
            self.fill_loss_weights(top)

    def _indices(self, values: list[int]) -> Array:
        backend = self.device.backend
        kind = backend.dtype("int64")
        return self.xp.asarray(values, dtype=kind, device=backend.array_device)

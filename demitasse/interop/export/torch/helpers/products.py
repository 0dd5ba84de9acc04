"""Products and sums with parameters."""


def affine(x, weights):
    """Multiply by the weight, where there is one, and add the bias, where there is one."""
    y = x * weights["weight"] if "weight" in weights else x
    return y + weights["bias"] if "bias" in weights else y

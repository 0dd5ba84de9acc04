"""Generator of nets that nobody wrote, and of the passes that are run on them.

A case follows from its size and its number alone.
"""

import math
import random
from dataclasses import replace

from net_builder import BUDGETS, NetBuilder
from net_case import Case, Scenario

__all__ = ["generate"]

SIZES = ("small", "medium", "large")


def generate(number: int, size: str = "mixed") -> Case:
    """Return case ``number`` of a size: "small", "medium", "large" or "mixed"."""
    rng = random.Random(f"{size} {number}")
    drawn = rng.choices(SIZES, (56, 34, 10))[0] if size == "mixed" else size
    train = rng.random() < 0.4
    backward = train or rng.random() < 0.15
    kind = rng.random()
    make = _sequence_net if kind < 0.06 else _plain_net if kind < 0.4 else _image_net
    for _ in range(20):
        builder = make(rng, drawn, train, backward)
        if builder.layers:
            break
    if train and rng.random() < 0.4:
        builder.freeze(rng.random(), scattered=rng.random() < 0.5)
    other = None
    if rng.random() < 0.25:
        make = rng.choice((_plain_net, _image_net))
        other = make(rng, rng.choice(("small", "small", "medium")), False, False).net()
    scenario = draw_scenario(rng, builder, other is not None)
    return Case(f"{size} {number}", rng.randrange(2**31), builder.net(), scenario, other)


# -- nets of images ------------------------------------------------------------------------------


def _image_net(rng: random.Random, size: str, train: bool, backward: bool) -> NetBuilder:
    """Return a net of blocks of every kind."""
    budget = BUDGETS[size]
    budget = replace(budget, macs=budget.macs * rng.choice((0.1, 0.3, 1)))
    b = NetBuilder(rng, budget, train, backward)
    n = rng.choice([n for n in (1, 1, 1, 1, 2, 2, 3, 4, 4, 5, 7, 8, 16) if n <= budget.batch])
    c = rng.choice((1, 3, 3, 3, 4, b.channels(), b.channels(), b.channels()))
    h = w = _side(rng, budget.side)
    kind = rng.random()
    if kind < 0.3:
        w = _side(rng, budget.side)
    elif kind < 0.34:
        h, w = (1, w) if rng.random() < 0.7 else (h, 1)
    while n * c * h * w > budget.values / 6:
        n, h, w = max(1, n // 2), max(1, (h + 1) // 2), max(1, (w + 1) // 2)
        c = max(1, c // 2) if n * h * w == 1 else c
    x = b.add_input((n, c, h, w))
    blocks = rng.randint(1, budget.blocks)
    for _ in range(blocks):
        if b.macs_left < 0.03 * budget.macs or b.values_left < 0.1 * budget.values:
            break
        made = _block(b, x)
        if made is not None:
            x = made
    _finish(b, x)
    return b


def _plain_net(rng: random.Random, size: str, train: bool, backward: bool) -> NetBuilder:
    """Return a short net of wide layers, as the middle of VGG, ResNet or a detector.

    Kernels of many channels run here, and one behind the other; all with a bias or none.
    """
    budget = replace(BUDGETS[size], macs=BUDGETS[size].macs * rng.choice((1, 3)), channels=512)
    b = NetBuilder(rng, budget, train, backward)
    wide = {"small": (16, 24, 32, 48, 64), "medium": (32, 48, 64, 96, 128, 192, 256)}
    channels = wide.get(size, (64, 96, 128, 192, 256, 384, 512))
    sides = (7, 8, 9, 13, 14, 15, 16, 19, 26, 27, 28, 30, 35, 38, 40, 52, 55, 56)
    h = rng.choice([side for side in sides if side <= max(16, b.budget.side)])
    w = rng.choice(sides) if rng.random() < 0.25 else h
    n = rng.choice((1, 1, 1, 2, 2, 3, 4, 8))
    x = b.add_input((n, rng.choice(channels), h, w))
    bias, norm = rng.random() < 0.5, rng.random() < 0.3
    acts = "ReLU", "ReLU", "ReLU", "PReLU", "ELU", "ReLU6", "Swish", "HardSwish"
    floor, act = rng.random() < 0.5, rng.choice(acts)
    for _ in range(rng.randint(1, 5)):
        k = b.pick([(60, (3, 3)), (14, (1, 1)), (9, (5, 5)), (6, (7, 7)), (4, (1, 3)), (4, (3, 1)),
                    (3, (2, 2))])  # fmt: skip
        stride = (1, 1) if b.chance(0.88) else (2, 2)
        out = rng.choice(channels)
        y = b.conv(x, out, k, stride=stride, pad="same", dilation=(1, 1), group=1, bias=bias)
        if y is None:
            break
        y = b.batch_norm(y) if norm else y
        if b.chance(0.75):
            y = b.act(y, act)
        if b.shapes[y] == b.shapes[x] and b.chance(0.4):
            y = b.eltwise([y, x], "SUM")
            y = b.act(y, act) if b.chance(0.5) else y
        if b.chance(0.3):
            window = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0)}
            window = window if b.chance(0.7) else {**window, "kernel": (3, 3)}
            method = "MAX" if b.chance(0.85) else "AVE"
            y = b.pool(y, **window, method=method, floor=floor) or y
        x = y
    if b.layers:
        _finish(b, x)
    return b


def _side(rng: random.Random, most: int) -> int:
    usual = [s for s in (7, 8, 12, 13, 14, 16, 19, 20, 24, 27, 28, 32, 35, 38, 40, 48, 55, 56, 64,
                         80, 96, 112, 149, 160, 192, 224) if s <= most]  # fmt: skip
    return rng.choice(usual) if rng.random() < 0.6 else rng.randint(1, most)


def _block(b: NetBuilder, x: str) -> str | None:
    """Add a block of layers behind ``x``; return None where none fits."""
    if len(b.shapes[x]) != 4:
        return _row_block(b, x)
    block = b.pick(
        [
            (30, _conv_block), (12, _residual), (7, _preactivated), (8, _branches), (5, _dense),
            (9, _separable), (7, _gated), (5, _shuffled), (13, NetBuilder.pool), (9, _upsampled),
            (5, NetBuilder.lrn), (3, NetBuilder.mvn), (3, NetBuilder.normalize),
            (4, NetBuilder.act), (2, NetBuilder.batch_norm), (2, NetBuilder.dropout), (2, _sliced),
            (2, _shared), (2, NetBuilder.crop), (2, NetBuilder.roi_pool), (2, NetBuilder.permute),
            (2, NetBuilder.softmax), (1, NetBuilder.scale), (2, NetBuilder.reorg),
            (2, _product), (2, _region_head),
        ]
    )  # fmt: skip
    return block(b, x)


def _row_block(b: NetBuilder, x: str) -> str | None:
    kind = b.rng.random()
    if kind < 0.6:
        y = b.inner_product(x)
        return b.act(y) if b.chance(0.6) else y
    if kind < 0.75:
        return b.act(x)
    if kind < 0.85:
        return b.dropout(x)
    if kind < 0.93:
        return b.batch_norm(x)
    return b.softmax(x)


def _conv_block(b: NetBuilder, x: str) -> str | None:
    y = b.conv(x)
    return y and _behind(b, y)


def _behind(b: NetBuilder, y: str) -> str:
    """Add what stands behind a convolution: nothing, a normalisation, an activation, or both."""
    kind = b.rng.random()
    if kind < 0.3:
        y = b.batch_norm(y)
    elif kind < 0.34:
        y = b.scale(y)
    if b.chance(0.75):
        y = b.act(y)
    return y


def _residual(b: NetBuilder, x: str) -> str | None:
    """Add a residual block: activation behind the sum."""
    c = b.shapes[x][1]
    stride = (2, 2) if b.chance(0.2) and min(b.shapes[x][2:]) > 2 else (1, 1)
    out = c if stride == (1, 1) and b.chance(0.7) else b.channels()
    return _residual_of(b, x, x, stride, out, preactivated=False)


def _preactivated(b: NetBuilder, x: str) -> str | None:
    """Add a residual block with normalisation and activation before the convolutions."""
    c = b.shapes[x][1]
    stride = (2, 2) if b.chance(0.15) and min(b.shapes[x][2:]) > 2 else (1, 1)
    out = c if stride == (1, 1) and b.chance(0.7) else b.channels()
    y = b.add("BatchNorm", x, b.shapes[x]) if b.chance(0.7) else x
    y = b.scale(y) if y != x else y
    y = b.add("ReLU", y, b.shapes[y]) if y == x else b.act(y, "ReLU")
    shortcut = x if b.chance(0.7) else y
    return _residual_of(b, y, shortcut, stride, out, preactivated=True)


def _residual_of(b, x, shortcut, stride, out, *, preactivated):
    bias = b.chance(0.4)
    normed = b.chance(0.6)
    one, three = (1, 1), (3, 3)

    def conv(x, m, k, stride=(1, 1), group=1):
        return b.conv(
            x, m, k, stride=stride, pad="same", dilation=(1, 1), group=group, bias=bias, tries=1
        )

    def behind(y, last):
        if preactivated and last:
            return y
        y = b.batch_norm(y) if normed else y
        return y if last else b.act(y, "ReLU" if b.chance(0.85) else None)

    if b.chance(0.5):
        few = max(1, out // 4)
        group = b.rng.choice((1, 1, 1, 4, 8, 32))
        group = group if few % group == 0 else 1
        plan = [(few, one, (1, 1), 1), (few, three, stride, group), (out, one, (1, 1), 1)]
    else:
        plan = [(out, three, stride, 1), (out, three, (1, 1), 1)]
    y = x
    for i, (m, k, s, g) in enumerate(plan):
        y = conv(y, m, k, s, g)
        if y is None:
            return None
        y = behind(y, i + 1 == len(plan))
    if b.shapes[shortcut] != b.shapes[y]:
        shortcut = conv(shortcut, out, one, stride)
        if shortcut is None or b.shapes[shortcut] != b.shapes[y]:
            return y
        shortcut = b.batch_norm(shortcut) if normed and not preactivated else shortcut
    both = [shortcut, y]
    b.rng.shuffle(both)
    y = b.eltwise(both, "SUM" if b.chance(0.85) else None)
    return y if preactivated else b.act(y, "ReLU" if b.chance(0.85) else None)


def _branches(b: NetBuilder, x: str) -> str | None:
    """Add branches that are concatenated, as in Inception nets."""
    sides = b.shapes[x][2:]
    ends = []
    for _ in range(b.rng.randint(2, 4)):
        kind = b.rng.random()
        if kind < 0.3:
            y = b.conv(x, None, (1, 1), stride=(1, 1), pad=(0, 0), dilation=(1, 1))
        elif kind < 0.7:
            y = b.conv(x, None, (1, 1), stride=(1, 1), pad=(0, 0), dilation=(1, 1))
            y = y and b.act(y, "ReLU")
            k = b.rng.choice(((3, 3), (3, 3), (5, 5), (1, 7), (7, 1), (1, 3), (3, 1), (7, 7)))
            y = y and b.conv(y, None, k, stride=(1, 1), pad="same", dilation=(1, 1))
        elif kind < 0.85:
            y = b.pool(x, kernel=(3, 3), stride=(1, 1), pad=(1, 1))
            if y and b.chance(0.7):
                y = b.conv(y, None, (1, 1), stride=(1, 1), pad=(0, 0), dilation=(1, 1))
        else:
            y = x
        if y and y != x and b.chance(0.7):
            y = _behind(b, y)
        if y and b.shapes[y][2:] == sides:
            ends.append(y)
    if len(ends) < 2 or len({b.shapes[y][0] for y in ends}) > 1:
        return ends[0] if ends and ends[0] != x else None
    y = b.concat(ends)
    return b.act(y, "ReLU") if b.chance(0.25) else y


def _dense(b: NetBuilder, x: str) -> str | None:
    """Add layers that each read all before them."""
    growth = b.rng.choice((4, 8, 12, 16, 24, 32, 48))
    for _ in range(b.rng.randint(1, 4)):
        y = x
        if b.chance(0.7):
            y = b.add("BatchNorm", x, b.shapes[x])
            y = b.act(b.scale(y), "ReLU")
        y = b.conv(y, growth, (3, 3), stride=(1, 1), pad="same", dilation=(1, 1), group=1)
        if y is None:
            return None if x == b.inputs[0].name else x
        x = b.concat([x, y] if b.chance(0.8) else [y, x])
    return x


def _separable(b: NetBuilder, x: str) -> str | None:
    """Add a depthwise convolution and a pointwise one, perhaps with a residual around."""
    begin = x
    if b.chance(0.4):
        wide = min(b.budget.channels, b.shapes[x][1] * b.rng.choice((2, 4, 6)))
        x = b.conv(x, wide, (1, 1), stride=(1, 1), pad=(0, 0), dilation=(1, 1), group=1)
        if x is None:
            return None
        x = _behind(b, x)
    y = b.depthwise(x)
    if y is None:
        return None
    y = _behind(b, y)
    out = b.shapes[begin][1] if b.chance(0.5) else None
    z = b.conv(y, out, (1, 1), stride=(1, 1), pad=(0, 0), dilation=(1, 1), group=1)
    if z is None:
        return y
    z = b.batch_norm(z) if b.chance(0.5) else z
    if b.shapes[z] == b.shapes[begin] and b.chance(0.8):
        return b.eltwise([begin, z], "SUM")
    return b.act(z) if b.chance(0.5) else z


def _gated(b: NetBuilder, x: str) -> str | None:
    if b.writers[x] == "Input" or b.chance(0.5):
        made = _conv_block(b, x)
        x = made or x
    return b.gate(x)


def _shuffled(b: NetBuilder, x: str) -> str | None:
    """Add a unit with two halves of the channels, as in ShuffleNet."""
    if b.chance(0.4):
        return b.shuffle(x)
    halves = b.slice(x)
    if halves is None:
        return None
    c = b.shapes[halves[1]][1]
    y = b.conv(halves[1], c, (1, 1), stride=(1, 1), pad=(0, 0), dilation=(1, 1), group=1)
    if y is None:
        return b.concat(halves)
    y = b.act(y, "ReLU")
    y = b.depthwise(y, (1, 1)) or y
    if b.shapes[y][2:] != b.shapes[halves[0]][2:]:
        return y
    y = b.concat([halves[0], y])
    return b.shuffle(y) or y


def _upsampled(b: NetBuilder, x: str) -> str | None:
    kind = b.rng.random()
    if kind < 0.55:
        y = b.deconv(x)
        if y and b.chance(0.4):
            y = _behind(b, y)
        if y and b.chance(0.35):
            y = b.crop(y) or y
        return y
    return b.interp(x) if kind < 0.8 else b.upsample(x)


def _sliced(b: NetBuilder, x: str) -> str | None:
    parts = b.slice(x, b.rng.choice((2, 2, 3)))
    if parts is None:
        return None
    ends = [b.act(part) if b.chance(0.5) else part for part in parts]
    if b.chance(0.3) and len({b.shapes[y] for y in ends}) == 1:
        return b.eltwise(ends)
    b.rng.shuffle(ends)
    return b.concat(ends)


def _shared(b: NetBuilder, x: str) -> str | None:
    """Add two convolutions with the same weights."""
    names = [f"shared{len(b.layers)}_{i}" for i in (0, 1)]
    y = b.conv(x, b.shapes[x][1], stride=(1, 1), pad="same", group=1, bias=True, names=names)
    if y is None:
        return None
    fields = b.layers[-1].fields
    if b.shapes[y] != b.shapes[x]:
        return y
    if b.chance(0.5):
        y = b.act(y, "ReLU")
    return b.add("Convolution", y, b.shapes[y], fields, macs=b.macs_left * 0.1)


def _product(b: NetBuilder, x: str) -> str | None:
    halves = b.split(x) if b.chance(0.5) else [x, x]
    gates = b.act(b.add("Sigmoid", halves[0], b.shapes[x]), "TanH")
    return b.eltwise([gates, halves[1]], b.rng.choice(("PROD", "MAX", "coeff")))


def _region_head(b: NetBuilder, x: str) -> str | None:
    """Add boxes and scores as detectors have them: convolutions, permuted and flattened."""
    k = b.rng.choice(((1, 1), (3, 3)))
    out = b.rng.choice((4, 8, 12, 16, 24))
    y = b.conv(x, out, k, stride=(1, 1), pad="same", dilation=(1, 1), group=1)
    if y is None:
        return None
    n, c, h, w = b.shapes[y]
    y = b.add("Permute", y, (n, h, w, c), {"permute_param": {"order": [0, 2, 3, 1]}})
    b.add("Flatten", y, (n, h * w * c), {"flatten_param": {"axis": 1}})
    return x


# -- ends ----------------------------------------------------------------------------------------


def _finish(b: NetBuilder, x: str) -> None:
    """Add a head: classes, a loss, or nothing."""
    if len(b.shapes[x]) == 4:
        kind = b.rng.random()
        if kind < 0.25:
            x = b.global_pool(x, "AVE" if b.chance(0.8) else "MAX")
        elif kind < 0.32:
            x = b.spp(x) or x
        elif kind < 0.4:
            x = b.flatten(x)
            b.fixed_sides = True
        if b.chance(0.5) and math.prod(b.shapes[x][1:]) <= 40_000:
            x = b.inner_product(x)
    loss = b.rng.random()
    if loss < (0.5 if b.train else 0.08):
        _add_loss(b, x)
    elif loss < 0.65:
        b.softmax(x)


def _add_loss(b: NetBuilder, x: str) -> None:
    shape = b.shapes[x]
    kind = b.rng.random()
    if kind < 0.6 and shape[1] > 1:
        labels = b.add_input((shape[0], *shape[2:]), f"labels:{shape[1]}", "label")
        b.fixed_sides = b.fixed_sides or len(shape) == 4
        b.add("SoftmaxWithLoss", [x, labels], ())
    elif kind < 0.85:
        target = b.add_input(shape, "noise", "target")
        b.fixed_sides = True
        b.add("EuclideanLoss", [x, target], ())
    else:
        target = b.add_input(shape, "labels:2", "target")
        b.fixed_sides = True
        b.add("SigmoidCrossEntropyLoss", [x, target], ())
    b.fixed_batch = b.fixed_batch or kind >= 0.6


# -- nets of sequences ---------------------------------------------------------------------------


def _sequence_net(rng: random.Random, size: str, train: bool, backward: bool) -> NetBuilder:
    """Return a net of recurrent layers."""
    b = NetBuilder(rng, BUDGETS[size], train, backward)
    b.fixed_sides = b.fixed_batch = True
    t, n = rng.choice((1, 2, 5, 8, 13, 20)), rng.choice((1, 2, 3, 8, 16))
    if rng.random() < 0.5:
        words = rng.choice((5, 50, 300))
        x = b.add_input((t, n), f"index:{words}")
        wide = rng.choice((3, 16, 32, 100))
        fields = {"input_dim": words, "num_output": wide}
        x = b.add("Embed", x, (t, n, wide), {"embed_param": fields})
    else:
        x = b.add_input((t, n, rng.choice((1, 7, 16, 39, 64, 128))))
    cont = b.add_input((t, n), "cont", "cont")
    for _ in range(rng.randint(1, 3)):
        y = b.recurrent(x, cont)
        if y is None:
            break
        x = b.dropout(y) if b.chance(0.2) else y
    x = b.inner_product(x, None, 2) if b.chance(0.7) else x
    if b.chance(0.3):
        x = b.act(x)
    if train and b.chance(0.6) and b.shapes[x][-1] > 1:
        labels = b.add_input(b.shapes[x][:2], f"labels:{b.shapes[x][-1]}", "label")
        b.add("SoftmaxWithLoss", [x, labels], (), {"softmax_param": {"axis": 2}})
    elif b.chance(0.5):
        b.add("Softmax", x, b.shapes[x], {"softmax_param": {"axis": 2}})
    return b


# -- passes --------------------------------------------------------------------------------------


OF_SOLVERS = {
    "edit", "jit", "other", "restore", "snapshot", "tested", "threads", "train", "winograd",
}  # fmt: skip
"""Actions beside a solver that trains the net."""


def draw_scenario(rng: random.Random, b: NetBuilder, has_other: bool) -> Scenario:
    """Return passes for a net: several times, with threads changed, resized, moved."""
    keep: str | tuple[str, ...] | None = rng.choice((None, "outputs", "outputs", ()))
    if keep == ():
        names = sorted({top for layer in b.layers for top in layer.tops})
        keep = tuple(rng.sample(names, min(len(names), rng.randint(1, 3))))
    shapes = _other_shapes(rng, b)
    threads = rng.randint(1, 4)
    steps: list[tuple[str, int | str]] = [("threads", threads)]
    train = b.train
    backward = b.backward and not train
    keep = None if backward else keep
    run = (
        "train" if train and rng.random() < 0.85 else "backward" if train or backward else "forward"
    )
    count = rng.choice((1, 2, 3, 4)) if run == "train" else rng.choice((1, 4, 4, 5))
    steps += [(run, 0)] * count
    if run != "train":
        steps.append((run, 1))
    extras = rng.sample(
        ("threads", "shape", "device", "other", "predict", "test", "edit", "edit", "pass", "pass",
         "setting", "clone", "state"),
        rng.randint(0, 6),
    )  # fmt: skip
    for extra in extras:
        match extra:
            case "threads":
                steps.append(("threads", rng.choice([n for n in (1, 2, 3, 4) if n != threads])))
                steps += [(run, rng.randint(0, 1))] * rng.choice((1, 2, 4))
            case "shape" if shapes:
                steps += [("shape", 0), (run, 0), (run, 1), (run, 1), ("shape", -1), (run, 0)]
            case "device":
                steps += [("device", "numpy"), (run, 0), ("device", "cpu"), (run, 0), (run, 1)]
            case "other" if has_other:
                for _ in range(rng.choice((1, 2, 4))):
                    steps += [("other", rng.randint(0, 1)), (run, rng.randint(0, 1))]
            case "predict" if not train:
                steps += [("predict", 0), (run, 1), ("predict", 1)]
            case "test" if train:
                steps += [(rng.choice(("forward", "tested")), 1)] * rng.randint(1, 5)
            case "edit":
                first = rng.randint(0, 1000)
                for number in range(first, first + rng.choice((1, 3, 6))):
                    steps += [("edit", number), (run, 0)]
            case "pass" if not backward:
                action = rng.choice(("hook", "thread", "beside", "ended", "parts", "failing"))
                number = rng.randint(0, 1000)
                steps += [(action, number)] * rng.choice((1, 2, 5)) + [(run, 0), (run, 1)]
            case "setting":
                name = rng.choice(("jit", "winograd"))
                steps += [(name, 0), (run, 0), (run, 1), (name, 1), (run, 0), (run, 1)]
            case "state" if run == "train":
                number = rng.randint(0, 1000)
                steps += [("snapshot", number)] + [(run, 1)] * rng.choice((1, 4))
                steps += [("restore", number), (run, 0), (run, 1)]
            case "clone":
                steps += [("clone", 0)] + [(run, rng.randint(0, 1))] * rng.choice((1, 2, 5))
    solver = ""
    if run == "train" and rng.random() < 0.3:
        solver = rng.choice(("SGD", "Nesterov", "Adam", "RMSProp", "AdaGrad"))
        steps = [step for step in steps if step[0] in OF_SOLVERS]
    return Scenario(
        phase="TRAIN" if train else "TEST",
        keep=keep,
        steps=tuple(steps),
        shapes=shapes,
        feed=rng.choice(("data", "data", "set_input")),
        read_all=rng.random() < 0.3,
        batches=rng.choice((1, 1, 1, 2)) if run == "train" else 1,
        solver=solver,
    )


def _other_shapes(rng: random.Random, b: NetBuilder) -> tuple[dict[str, tuple[int, ...]], ...]:
    if b.fixed_batch:
        return ()
    batch = rng.choice((1, 2, 3, 5))
    more_h, more_w = rng.randint(-3, 6), rng.randint(-3, 6)
    shapes = {}
    for one in b.inputs:
        shape = (batch, *one.shape[1:])
        if not b.fixed_sides and len(shape) == 4:
            shape = (batch, shape[1], max(1, shape[2] + more_h), max(1, shape[3] + more_w))
        shapes[one.name] = shape
    before = sum(math.prod(one.shape) for one in b.inputs)
    after = sum(math.prod(shape) for shape in shapes.values())
    work = (b.macs / b.budget.macs, b.values / b.budget.values)
    return (shapes,) if max(work) * after / before < 1.5 else ()

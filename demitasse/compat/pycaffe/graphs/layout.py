"""Layered layout of directed graphs, after Sugiyama.

Steps: reverse some edges to remove cycles, assign each node to a layer, bend edges that span
several layers, order each layer to minimize crossings, then move nodes towards their neighbours.

*Across* is the direction along a layer, *down* the one from layer to layer; both in pixels.

Source: Sugiyama, Tagawa, Toda, "Methods for visual understanding of hierarchical system
structures", 1981.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

Point = tuple[float, float]
"""Coordinates across and down."""

Edge = tuple[int, int]

GAP = 24.0
"""Smallest distance between neighbours in a layer."""

BEND = 8.0
"""Width that an edge occupies in a layer that it passes through."""

PARALLEL = 14.0
"""Distance between parallel edges."""

ORDER_SWEEPS, PLACE_SWEEPS, RANK_SWEEPS = 12, 8, 8


@dataclass(frozen=True)
class Layout:
    """Positions of nodes and edges.

    Attributes:
        routes: Points of each edge, from its first node to its second.
    """

    size: Point
    centers: list[Point]
    routes: list[list[Point]]


def layered(sizes: Sequence[Point], edges: Sequence[Edge], distance: float) -> Layout:
    """Lay out a graph; edges are pairs of indices of nodes, and may be cyclic or parallel."""
    straight = _acyclic(len(sizes), edges)
    rank = _ranks(len(sizes), straight)
    paths, rank = _bend_long_edges(straight, rank)
    layers = _order_layers(paths, rank)
    breadth = [across for across, _ in sizes] + [BEND] * (len(rank) - len(sizes))
    across = _place_nodes(layers, paths, breadth, real=len(sizes))
    bands = _bands([[n for n in layer if n < len(sizes)] for layer in layers], sizes, distance)
    down = [sum(bands[r]) / 2 for r in rank]
    shifts = _shifts(straight)
    routes = []
    for (source, _), path, shift in zip(edges, paths, shifts, strict=True):
        first, *bends, last = path
        route = [(across[first] + shift, down[first] + sizes[first][1] / 2)]
        for bend in bends:
            route += [(across[bend] + shift, edge) for edge in bands[rank[bend]]]
        route.append((across[last] + shift, down[last] - sizes[last][1] / 2))
        routes.append(route if source == first else route[::-1])
    width = max((x + b / 2 for x, b in zip(across, breadth, strict=True)), default=0.0)
    height = bands[-1][1] if bands else 0.0
    centers = list(zip(across[: len(sizes)], down[: len(sizes)], strict=True))
    return Layout((width, height), centers, routes)


def _targets(count: int, edges: Iterable[Edge]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        found[source].append(target)
    return found


def _acyclic(count: int, edges: Sequence[Edge]) -> list[Edge]:
    """Return the edges, with those reversed that close a cycle."""
    after = _targets(count, edges)
    entered = {target for _, target in edges}
    starts = sorted(range(count), key=lambda node: node in entered)
    state = [0] * count  # 1 on the way, 2 done
    back = set()
    for start in starts:
        way = [(start, iter(after[start]))] if not state[start] else []
        state[start] = state[start] or 1
        while way:
            node, rest = way[-1]
            following = next(rest, None)
            if following is None:
                state[node] = 2
                way.pop()
            elif state[following] == 1:
                back.add((node, following))
            elif state[following] == 0:
                state[following] = 1
                way.append((following, iter(after[following])))
    return [(b, a) if (a, b) in back else (a, b) for a, b in edges]


def _ranks(count: int, edges: Sequence[Edge]) -> list[int]:
    """Return the layer of each node: below all its predecessors, with short edges."""
    edges = [edge for edge in edges if edge[0] != edge[1]]
    after, before = _targets(count, edges), _targets(count, [(b, a) for a, b in edges])
    in_degree = [len(nodes) for nodes in before]
    ready = deque(node for node in range(count) if not in_degree[node])
    rank, order = [0] * count, []
    while ready:
        node = ready.popleft()
        order.append(node)
        for target in after[node]:
            rank[target] = max(rank[target], rank[node] + 1)
            in_degree[target] -= 1
            if not in_degree[target]:
                ready.append(target)
    for _ in range(RANK_SWEEPS):
        old = list(rank)
        for node in reversed(order):
            if len(after[node]) > len(before[node]):
                rank[node] = min(rank[target] for target in after[node]) - 1
        for node in order:
            if len(before[node]) > len(after[node]):
                rank[node] = max(rank[source] for source in before[node]) + 1
        if rank == old:
            break
    top = min(rank, default=0)
    return [r - top for r in rank]


def _bend_long_edges(edges: Sequence[Edge], rank: list[int]) -> tuple[list[list[int]], list[int]]:
    """Number a bend, after the nodes, for each skipped layer; return paths of edges, and layers."""
    rank = list(rank)
    paths = []
    for source, target in edges:
        skipped = range(rank[source] + 1, rank[target])
        paths.append([source, *range(len(rank), len(rank) + len(skipped)), target])
        rank += skipped
    return paths, rank


def _order_layers(paths: Sequence[Sequence[int]], rank: Sequence[int]) -> list[list[int]]:
    """Return the nodes of each layer, ordered by the mean position of their neighbours.

    Sweeps go down and up in turns; the order with the fewest crossings is returned.
    """
    steps = [step for path in paths for step in pairwise(path) if rank[step[0]] != rank[step[1]]]
    below, above = _targets(len(rank), steps), _targets(len(rank), [(b, a) for a, b in steps])
    layers: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for node in _depth_first(below, above):
        layers[rank[node]].append(node)
    place = {node: i for layer in layers for i, node in enumerate(layer)}
    best, fewest = [list(layer) for layer in layers], _crossings(layers, below, place)
    for sweep in range(ORDER_SWEEPS):
        if not fewest:
            break
        near, order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        for layer in order:
            mean = {n: _mean([place[m] for m in near[n]], place[n]) for n in layer}
            layer.sort(key=mean.__getitem__)
            place.update((node, i) for i, node in enumerate(layer))
        count = _crossings(layers, below, place)
        if count < fewest:
            best, fewest = [list(layer) for layer in layers], count
    return best


def _depth_first(below: list[list[int]], above: list[list[int]]) -> list[int]:
    """Return all nodes in depth-first order, so that branches are contiguous."""
    seen: dict[int, None] = {}
    for start in range(len(below)):
        waiting = [start] if not above[start] else []
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen[node] = None
                waiting += reversed(below[node])
    return [*seen, *(node for node in range(len(below)) if node not in seen)]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _crossings(layers: list[list[int]], below: list[list[int]], place: dict[int, int]) -> int:
    count = 0
    for layer in layers:
        ends: list[int] = []
        for node in layer:
            targets = sorted(place[target] for target in below[node])
            count += sum(len(ends) - bisect_right(ends, target) for target in targets)
            for target in targets:
                insort(ends, target)
    return count


def _place_nodes(
    layers: list[list[int]], paths: Sequence[Sequence[int]], breadth: Sequence[float], real: int
) -> list[float]:
    """Return positions near the neighbours above and below, in order and without overlap."""
    steps = [step for path in paths for step in pairwise(path)]
    below, above = _targets(len(breadth), steps), _targets(len(breadth), [(b, a) for a, b in steps])
    across = [0.0] * len(breadth)
    for layer in layers:
        for node, x in zip(layer, _separate([0.0] * len(layer), layer, breadth, real), strict=True):
            across[node] = x
    for sweep in range(PLACE_SWEEPS):
        near, order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        for layer in order:
            wanted = [_mean([across[m] for m in near[n]], across[n]) for n in layer]
            for node, x in zip(layer, _separate(wanted, layer, breadth, real), strict=True):
                across[node] = x
    left = min((x - b / 2 for x, b in zip(across, breadth, strict=True)), default=0.0)
    return [x - left for x in across]


def _separate(
    wanted: Sequence[float], layer: Sequence[int], breadth: Sequence[float], real: int
) -> list[float]:
    """Return the positions closest to the wanted ones (least squares) in order and at a distance.

    Overlapping nodes become a block with one position. Bends weigh more than nodes, so that long
    edges are straight.
    """
    steps = ((breadth[a] + breadth[b]) / 2 + GAP for a, b in pairwise(layer))
    offsets = list(accumulate(steps, initial=0.0))[: len(layer)]
    blocks: list[tuple[float, float, int]] = []  # place of the first, weight, number of nodes
    for node, x, offset in zip(layer, wanted, offsets, strict=True):
        block = (x - offset, 1.0 if node < real else 4.0, 1)
        while blocks and blocks[-1][0] >= block[0]:
            place, weight, count = blocks.pop()
            total = weight + block[1]
            block = ((place * weight + block[0] * block[1]) / total, total, count + block[2])
        blocks.append(block)
    firsts = [place for place, _, count in blocks for _ in range(count)]
    return [first + offset for first, offset in zip(firsts, offsets, strict=True)]


def _bands(layers: list[list[int]], sizes: Sequence[Point], distance: float) -> list[Point]:
    """Return the start and end of each layer."""
    bands, start = [], 0.0
    for layer in layers:
        end = start + max((sizes[node][1] for node in layer), default=0.0)
        bands.append((start, end))
        start = end + distance
    return bands


def _shifts(edges: Sequence[Edge]) -> list[float]:
    """Return the shift of each edge that separates parallel edges."""
    number: dict[Edge, int] = {}
    numbers = []
    for edge in edges:
        numbers.append(number.get(edge, 0))
        number[edge] = numbers[-1] + 1
    return [
        (index - (number[edge] - 1) / 2) * PARALLEL
        for index, edge in zip(numbers, edges, strict=True)
    ]

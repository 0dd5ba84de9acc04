"""Pages of the layer types, from the table of metadata, docstrings and ``caffe.proto``."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from backend_support import BACKENDS, support
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from layer_examples import EXAMPLES
from message_tables import field_tables

from demitasse.io.proto import LayerParameter
from demitasse.layers.metadata import ALWAYS, FAMILIES, METADATA, LayerMetadata, canonical_type
from demitasse.layers.registry import CATALOG

FOLDER = "reference/layers"
INDEX = "reference/layer_types.md"
MESSAGES = f"{FOLDER}/messages.md"
SHARED = {"TransformationParameter"}
"""Messages of layers that are described with the shared ones, because many types read them."""

INDEX_HEAD = """\
# Layer types

Every type a `layer { type: ... }` may name. What a backend has a faster way for in at least the
usual options is *lowered*, on `cpu` sometimes only where no gradient is wanted; where it says
*portable*, the layer's own code runs on the backend's arrays; *host* is work of the host on every
device. The last column says whose recorded outputs the layer was compared with. Fields that every
layer has are on the page of
[shared messages](layers/messages.md).
"""
MESSAGES_HEAD = """\
# Shared messages

What every layer has, and messages that stand in those of several types.

## LayerParameter

The fields of every layer; each type's own message is on its page.
"""
GRADIENTS = {
    "gradient": "A gradient passes through it.",
    "source": "It has no bottoms, so no gradient passes.",
    "none": "No gradient passes: it is refused, or 0.",
}
READS = {
    "bottoms": "its bottoms",
    "tops": "its tops",
    "first top": "its first top",
    "second top": "its second top",
    "tops with gradient": "its tops where they have a gradient",
    "signs": "the signs of its tops",
    "params": "its parameters",
}
REFERENCES = {
    "Caffe": "Outputs, and gradients where there are any, are compared with those recorded from "
    "Caffe.",
    "OpenCV": "Outputs are compared with those recorded from OpenCV; no output of the original is "
    "there.",
    "definition": "Outputs and gradients are compared with values of its formula, computed with 50 "
    "digits.",
    "": "Not compared with the original, whose outputs are not recorded.",
}
OPTIONS = (
    "    options: {members: false, show_root_heading: false, show_bases: false, "
    "show_root_toc_entry: false, separate_signature: false, show_root_full_path: false, "
    "show_signature: false}\n"
)


def layer_pages() -> dict[str, str]:
    """Return the pages by path: the table of types, one for each class, the shared messages."""
    pages = {INDEX: "\n".join(_index())}
    pages |= {page_of(name): "\n".join(_page(name, facts)) for name, facts in METADATA.items()}
    pages[MESSAGES] = "\n".join(_messages())
    return pages


def page_of(name: str) -> str:
    """Return the path of the page that describes a type."""
    return f"{FOLDER}/{canonical_type(name).lower()}.md"


def layer_nav() -> list[object]:
    """Return what stands below "Layer types" in the navigation."""
    families = [
        {family: [{name: page_of(name)} for name, facts in _sorted() if facts.family == family]}
        for family in FAMILIES
    ]
    return [{"All types": INDEX}, *families, {"Shared messages": MESSAGES}]


def class_of(name: str) -> str:
    """Return the dotted path of the class of a type: registered under its name, or called so."""
    module = CATALOG[name]
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and (node.name == name or _registers(node, name)):
            return f"{module}.{node.name}"
    message = f"{module} has no class for {name}"
    raise RuntimeError(message)


def _registers(node: ast.ClassDef, name: str) -> bool:
    calls = [d for d in node.decorator_list if ast.unparse(d).startswith("register_layer(")]
    return any(ast.literal_eval(a) == name for call in calls for a in call.args)


@cache
def _tree(module: str) -> ast.Module:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        message = f"the catalogue names {module}, and there is no such module"
        raise RuntimeError(message)
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _sorted() -> list[tuple[str, LayerMetadata]]:
    return sorted(METADATA.items(), key=lambda item: item[0].lower())


def _index() -> Iterator[str]:
    yield INDEX_HEAD
    for family in FAMILIES:
        yield f"## {family}\n"
        yield f"| type | gradient | {' | '.join(BACKENDS)} | compared with |"
        yield "| --- " * (len(BACKENDS) + 3) + "|"
        for name, facts in _sorted():
            if facts.family == family:
                yield from (_row(n, facts) for n in (name, *facts.aliases))
        yield ""


def _row(name: str, facts: LayerMetadata) -> str:
    link = page_of(name).removeprefix("reference/")
    cells = [f"[{name}]({link})", _yes(facts), *support(name).values(), facts.reference or "-"]
    return f"| {' | '.join(cells)} |"


def _yes(facts: LayerMetadata) -> str:
    return {"gradient": "yes", "source": "no bottoms", "none": "no"}[facts.gradient]


def _page(name: str, facts: LayerMetadata) -> Iterator[str]:
    path = class_of(name)
    yield f"# {name}\n"
    if facts.aliases:
        yield f"Also called {' and '.join(f'`{other}`' for other in facts.aliases)}.\n"
    of_file = ast.get_docstring(_tree(CATALOG[name])) or ""
    if of_file.startswith(f"{name}:"):  # in a file of several types, the class has it all
        yield f"{of_file}\n"
    yield f"::: {path}\n{OPTIONS}"
    yield "## Example\n"
    yield from _example(name)
    yield "## Fields\n"
    if not facts.fields:
        yield "None of its own.\n"
    for field in facts.fields:
        yield from _own_field(field)
    yield "Those of every layer: [LayerParameter](messages.md#layerparameter).\n"
    if facts.params:
        yield "## Parameters\n"
        yield from _params(facts)
    yield "## Backends\n"
    yield f"| {' | '.join(BACKENDS)} |\n{'| --- ' * len(BACKENDS)}|"
    yield f"| {' | '.join(support(name).values())} |\n"
    yield f"{GRADIENTS[facts.gradient]} {_backward(facts)}{REFERENCES[facts.reference]}\n"


def _example(name: str) -> Iterator[str]:
    example = EXAMPLES[name]
    yield f"```protobuf\n{example.text}\n```\n"
    if example.inputs:
        shapes = [f"`{blob}` ({_shape(shape)})" for blob, shape in example.inputs.items()]
        yield f"For example with {_listed(shapes)}.\n"


def _shape(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")


def _params(facts: LayerMetadata) -> Iterator[str]:
    yield "| parameter | there | begins with |\n| --- | --- | --- |"
    for one in facts.params:
        begin = f"`{one.filler.partition('.')[2]}`" if one.filler else "0"
        if one.role == "average":
            begin = f"{begin}; not learned" if one.filler else "computed, not learned"
        yield f"| {one.name} | {one.condition.text} | {begin} |"
    yield ""


def _backward(facts: LayerMetadata) -> str:
    """Say what the layer's own backward reads, so that nobody overwrites it in place."""
    if facts.gradient != "gradient" or not facts.known:
        return ""
    reads = [
        READS[what] + (f" ({condition.text})" if condition is not ALWAYS else "")
        for what, condition in facts.backward_inputs.items()
    ]
    return f"Its gradient is computed from {_listed(['that of its tops', *reads])}. "


def _listed(parts: list[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def _own_field(path: str) -> Iterator[str]:
    """Describe a message of LayerParameter, or with "message.field" a single field of one."""
    name, _, single = path.partition(".")
    message = LayerParameter.DESCRIPTOR.fields_by_name[name].message_type
    yield f"### {path}\n"
    if message.name in SHARED:
        yield f"A [{message.name}](messages.md#{message.name.lower()}).\n"
    elif single:
        yield from field_tables(message, {single})
    else:
        yield from field_tables(message)


def _messages() -> Iterator[str]:
    yield MESSAGES_HEAD
    whole = LayerParameter.DESCRIPTOR
    own = {field.name for field in whole.fields if _is_own(field)}
    yield from field_tables(whole, {field.name for field in whole.fields} - own)
    for message in sorted(_linked(), key=lambda message: message.name):
        yield f"## {message.name}\n"
        yield from field_tables(message)


def _is_own(field: FieldDescriptor) -> bool:
    """Whether a field of LayerParameter is a message of some types."""
    return field.name.endswith("_param")


def _linked() -> list[Descriptor]:
    """Return the messages that pages link to."""
    fields = LayerParameter.DESCRIPTOR.fields
    found: dict[str, Descriptor] = {}
    waiting = [f.message_type for f in fields if f.message_type is not None]
    shown = {f.message_type.name for f in fields if f.message_type is not None and _is_own(f)}
    while waiting:
        message = waiting.pop()
        if message.full_name in found:
            continue
        found[message.full_name] = message
        waiting += [f.message_type for f in message.fields if f.message_type is not None]
    return [m for m in found.values() if m.name not in shown or m.name in SHARED]

"""How many records a net's data layers read, and a net for what the last batch leaves over."""

from __future__ import annotations

from collections.abc import Callable, Sized
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demitasse.data.db import open_db, records
from demitasse.errors import ConfigError
from demitasse.net import Net
from demitasse.proto import DataParameter, read_net_params

__all__ = ["Epoch", "epoch_of", "net_for_rest"]

WITHOUT_RECORDS = frozenset({"DummyData", "Input", "Parameter"})


@dataclass(frozen=True)
class Epoch:
    """One pass over the data.

    Attributes:
        records: How many records there are.
        batch: How many of them a forward pass reads.
    """

    records: int
    batch: int

    @property
    def batches(self) -> int:
        """Whole batches."""
        return self.records // self.batch

    @property
    def rest(self) -> int:
        """Records that the whole batches leave over."""
        return self.records % self.batch


def epoch_of(net: Net) -> Epoch:
    """Return the size of one pass over the data that a net reads.

    Raises:
        ConfigError: No data layer can tell, or they do not agree.
    """
    found: dict[str, Epoch] = {}
    for layer in net.layers:
        if layer.type in SOURCES:
            found[layer.name] = Epoch(SOURCES[layer.type].count(layer), _param(layer).batch_size)
        elif not net.bottom_ids(net.layer_number(layer.name)) and (
            layer.type not in WITHOUT_RECORDS
        ):
            message = (
                f"layer {layer.name!r} ({layer.type}) has no end that an epoch could be counted "
                "by; give the number of batches"
            )
            raise ConfigError(message)
    if len(set(found.values())) != 1:
        sizes = ", ".join(f"{n}: {e.records} in batches of {e.batch}" for n, e in found.items())
        message = (
            "an epoch needs data layers that read equally many records in equal batches; "
            f"{sizes or 'the net has no data layer'}; give the number of batches"
        )
        raise ConfigError(message)
    return next(iter(found.values()))


def net_for_rest(net: Net, model: Path, epoch: Epoch, **state: Any) -> Net:
    """Return a net like ``net``, at the same records, whose batch is what an epoch leaves over.

    Args:
        net: The net, after the whole batches of an epoch.
        model: The file it was made from.
        epoch: Of that net.
        state: ``level`` and ``stages`` it was made with.
    """
    message = read_net_params(model)
    for param in message.layer:
        if param.type in SOURCES:
            getattr(param, SOURCES[param.type].field).batch_size = epoch.rest
    rest = Net(message, net.phase, device=net.device, seed=net.seed, base_dir=model.parent, **state)
    rest.share_trained_layers_with(net)
    for layer in net.layers:
        if layer.type in SOURCES:
            rest.layer_by_name(layer.name).set_state(layer.state())
    return rest


@dataclass(frozen=True)
class _Source:
    """A type of data layer: the field with its batch size, and how its records are counted."""

    field: str
    count: Callable[[Any], int]


def _records_of_database(layer: Any) -> int:
    backend = DataParameter.DB.Name(layer.param.data_param.backend)
    with closing(open_db(layer.source, backend)) as database:
        if isinstance(database, Sized):
            return len(database)
        with closing(database.new_cursor()) as cursor:
            return sum(1 for _ in records(cursor))


def _rows_of_files(layer: Any) -> int:
    from demitasse.data.hdf5 import Hdf5File

    rows = 0
    for path in layer.paths:
        with closing(Hdf5File(path, layer.names)) as file:
            rows += file.rows
    return rows


def _pictures_of_list(layer: Any) -> int:
    return len(layer.entries)


SOURCES = {
    "Data": _Source("data_param", _records_of_database),
    "HDF5Data": _Source("hdf5_data_param", _rows_of_files),
    "ImageData": _Source("image_data_param", _pictures_of_list),
}
"""Layer types that read a set of records from its beginning to its end."""


def _param(layer: Any) -> Any:
    return getattr(layer.param, SOURCES[layer.type].field)

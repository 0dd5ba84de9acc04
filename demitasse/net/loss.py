"""The loss of a pass: the one number of it that the host waits for, and when it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from demitasse.backends.arrays import Array
from demitasse.core.device import Device
from demitasse.memory import transfers

__all__ = ["Loss", "total"]


def total(terms: Sequence[Array], device: Device) -> Array | None:
    """Return the sum of a pass's weighted loss tops on its device; None where there is none.

    Shapes: () each -> ().
    """
    return reduce(device.backend.add, terms) if terms else None


class Loss:
    """The loss of a forward pass, which the device may still be computing.

    On a device that does not queue its work it is brought to the host at once: that is for nothing
    there, and what is wrong with it shows before anything else is done.

    Args:
        array: The sum of the weighted loss tops on the device, (); None where no layer gives one.
        device: Where it is.
        check: Called with the number when it is read; raises where it tells of a mistake.
    """

    def __init__(self, array: Array | None, device: Device, check: Callable[[float], None]) -> None:
        self.array = array
        self._device, self._check = device, check
        self._number = None if device.backend.queues else self._brought()

    def wait(self) -> float:
        """Return the number, unchecked; the device has then done all that came before it."""
        if self._number is None:
            self._number = self._brought()
        return self._number

    def read(self) -> float:
        """Return the number.

        Raises:
            DataError: A label is none of the classes that the scores have, and not ignored.
        """
        number = self.wait()
        self._check(number)
        return number

    def _brought(self) -> float:
        if self.array is None:
            return 0.0
        if not self._device.shares_host:
            dtype = self.array.dtype
            transfers.note(down=dtype.itemsize if hasattr(dtype, "itemsize") else 4)
        return float(self._device.backend.to_host(self.array))

"""Whether a field of a message may be given several times, whichever protobuf is installed."""

from google.protobuf.descriptor import FieldDescriptor


def is_repeated(field: FieldDescriptor) -> bool:
    """Return it; before protobuf 6 a field says it by its label alone."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)

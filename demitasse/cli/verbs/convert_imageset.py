"""convert_imageset: a database of image files that a list names.

Source: Caffe, ``tools/convert_imageset.cpp``.
"""

from __future__ import annotations

import click

from demitasse.cli.imagesets import Conversion, image_set_options
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@image_set_options
def command(conversion: Conversion) -> None:
    """Make a database of the images that a list names.

    LISTFILE has lines "NAME LABEL"; ROOTFOLDER/ is put before each name as it is. The database
    appears when it is complete; what an interrupted run leaves, --resume goes on with.
    """
    conversion.run()

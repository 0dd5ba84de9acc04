"""SSD's ``get_image_size``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("get_image_size")

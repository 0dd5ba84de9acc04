"""SSD's ``convert_annoset``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("convert_annoset")

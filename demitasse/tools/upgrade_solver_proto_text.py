"""Caffe's ``upgrade_solver_proto_text``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("upgrade_solver_proto_text")

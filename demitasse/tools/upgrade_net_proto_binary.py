"""Caffe's ``upgrade_net_proto_binary``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("upgrade_net_proto_binary")

"""Gives the wheel the platform of its binary, which `build.sh` names in the variable PLATFORM."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformHook(BuildHookInterface):
    def initialize(self, version, build_data):
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ['PLATFORM']}"

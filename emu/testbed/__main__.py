"""``python -m emu.testbed DIRECTORY``: the process of a testbed, started by ``emu up``."""

import os
import sys
from pathlib import Path

if sys.path[:1] == [os.getcwd()]:
    sys.path.append(sys.path.pop(0))  # last, so that no module of this folder stands in for one that is installed

from emu.testbed.daemon import main

sys.exit(main(Path(sys.argv[1])))

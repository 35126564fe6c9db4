"""Started by its path: ``python worker.py FOLDER RANK...``. Runs these ranks of the job in the folder.

The modules named ``validate``, ``estimators`` and ``selector`` that it uses are those beside this file, whatever the
working folder, ``PYTHONPATH`` or site-packages hold under these names.
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if p and os.path.abspath(p) != HERE]  # neither this folder nor the working folder
spec = spec_from_file_location("dist_advisor", os.path.join(os.path.dirname(HERE), "dist_advisor.py"))
own = module_from_spec(spec)
spec.loader.exec_module(own)
sys.meta_path.insert(0, own.OwnPackages())

if __name__ == "__main__":
    from validate.rank import main

    sys.exit(main(sys.argv[1], [int(rank) for rank in sys.argv[2:]]))

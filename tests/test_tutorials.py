"""The programs in the tutorials run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = sorted(Path(__file__).parent.parent.glob("docs/tutorials/*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_blocks_of_a_tutorial_are_one_program(page, tmp_path):
    program = "\n".join(BLOCK.findall(page.read_text()))
    assert program, f"{page.name} holds no python block"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

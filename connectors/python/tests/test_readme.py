"""The README's programs do what it says."""

import pathlib
import re
import subprocess

from conftest import PASSWORD, interpreter

README = pathlib.Path(__file__).parent.parent / "README.md"


def programs(broker):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return [block.replace("localhost:7600", broker.address) for block in blocks]


def run(program):
    done = subprocess.run([interpreter(), "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_programs_of_the_readme_do_what_it_says(broker):
    told = [run(program) for program in programs(broker)[:6]]
    batch = "0 []\n1 [('colour', b'red')]\n"
    # A producer that is held up between the two records puts them into two batches.
    assert told.pop(2) in (batch, batch.splitlines(keepends=True)[0])
    assert told == [
        "a hat is record 0\n",
        "ann buys a hat\nbob buys a cap\n",
        "0 a hat\n1 a cap\n[Position(streamlet=0, lane=0, ordinal=2)]\n",
        "a hat\na cap\na coat\na scarf\nboots\n",
        "UNKNOWN_STREAM False False\n",
    ]


def test_the_login_of_the_readme(with_users):
    assert PASSWORD in README.read_text()
    [program] = programs(with_users)[6:7]
    assert run(program) == "ann sees 0 streams\n"


def test_the_coroutines_of_the_readme(broker):
    [program] = programs(broker)[7:]
    assert run(program) == "ann's visit is record 0\nann came\nbob came\n"

"""What a learner works with, on two hosts that share no files: checks, looks, pictures, bytes, times."""

from __future__ import annotations

import pytest

from tests.hosts.test_ssh import Ssh

CHECK = "import labkit.theory.collectives as c\nverdict = lab.check('f', means=c.all_reduce)\nprint(*verdict.says)"
RIGHT = "def f(x):\n    y = x.clone()\n    dist.all_reduce(y)\n"


class TestTools(Ssh):
    @pytest.fixture
    def notebook(self, shared):
        shared.run("%%px\nx = torch.tensor([rank + 1.0])")
        return shared

    def says(self, notebook, code: str) -> str:
        cell = notebook.run(code)
        assert cell.status == "ok", cell
        return cell.stdout + (cell.result or "")

    def test_a_right_function_is_found_right_and_a_wrong_one_is_named(self, notebook):
        self.says(notebook, f"%%px\n{RIGHT}    return y")
        assert self.says(notebook, f"{CHECK}\nverdict").endswith("✓ f: right on 24 inputs.")
        self.says(notebook, f"%%px\n{RIGHT}    return y + (rank == 3)")
        assert "With 4 ranks" in self.says(notebook, CHECK)

    def test_a_process_that_crashes_on_another_host_tells_where(self, notebook):
        self.says(
            notebook, f"%%px\n{RIGHT}    import ctypes\n    if rank == 3:\n        ctypes.string_at(0)\n    return y"
        )
        assert "With 4 ranks: rank 3 died (SIGSEGV) in line 7." in self.says(notebook, CHECK)
        self.says(notebook, f"%%px\n{RIGHT}    return y")
        assert self.says(notebook, f"{CHECK}\nverdict").endswith("✓ f: right on 24 inputs.")

    def test_values_moves_bytes_and_waits_are_shown_from_the_run(self, notebook):
        assert "rank 3 │" in self.says(notebook, "lab.look('x')")
        assert "rank 3 │ 4 (3·0) → 10 (Σ 0–3·0)" in self.says(notebook, "lab.flow('dist.all_reduce(x)', 'x')")
        sends = "if rank == 1: dist.send(torch.ones(1 << 18), 2)\nif rank == 2: dist.recv(torch.ones(1 << 18), 1)"
        assert self.says(notebook, f"lab.wire({sends!r}).across(lab.hosts)[0][1] >> 20") == "1"
        self.says(notebook, "%%px\nimport time\nif rank == 3: time.sleep(0.5)\ndist.barrier()")
        assert "waited for rank 3 in barrier" in self.says(notebook, "lab.last.waits()")

    def test_times_are_taken_and_a_lateness_between_clocks_of_two_hosts_is_not_told(self, notebook):
        assert "4 ranks, Gloo on cpu" in self.says(notebook, "%px print(timed(lambda: dist.barrier(), repeat=3))")
        assert "4 CPU ranks on 2 hosts" in self.says(notebook, "lab.sweep('all_reduce', sizes=[64], repeat=3)")

"""Files in the output folder."""

import pytest

from headrace_bench.errors import BenchError
from headrace_bench.modes.run import out_file


def test_an_output_file_appears_whole(tmp_path) -> None:
    path = out_file(tmp_path, "x.json", lambda part: part.write_text("{}") and None)
    assert path.read_text() == "{}"
    assert [item.name for item in tmp_path.iterdir()] == ["x.json"]
    with pytest.raises(BenchError, match="cannot be written"):
        out_file(tmp_path / "none", "x.json", lambda part: part.write_text("{}") and None)

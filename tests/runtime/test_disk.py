"""Files of the system are replaced as a whole or stay as they were."""

import os
import stat

import pytest

from einc_runtime.disk import make_directory, write_file
from einc_runtime.errors import WriteFault


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path):
    target = tmp_path / "plan.bin"
    write_file(target, lambda stream: stream.write(b"older and longer"))
    target.chmod(0o640)
    write_file(str(target), lambda stream: stream.write(b"newer"))
    assert target.read_bytes() == b"newer"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["plan.bin"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
def test_what_fails_leaves_the_older_file_and_no_other(tmp_path, error):
    target = tmp_path / "plan.bin"
    target.write_bytes(b"older")

    def fail(stream):
        stream.write(b"half of")
        stream.flush()
        assert len(os.listdir(tmp_path)) == 2
        raise error

    with pytest.raises(WriteFault if isinstance(error, OSError) else type(error)) as caught:
        write_file(target, fail)
    assert not isinstance(error, OSError) or caught.value.where == str(target)
    assert target.read_bytes() == b"older"
    assert os.listdir(tmp_path) == ["plan.bin"]


def test_a_link_stays_one_and_a_device_is_written_directly(tmp_path):
    (tmp_path / "there").write_bytes(b"older")
    (tmp_path / "link").symlink_to("there")
    write_file(tmp_path / "link", lambda stream: stream.write(b"newer"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_bytes() == b"newer"
    write_file("/dev/null", lambda stream: stream.write(b"gone"))


def test_a_place_that_is_not_there_has_the_name_that_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, reason in (("no/plan.bin", "no such directory"), (".", "it is a directory")):
        with pytest.raises(WriteFault, match=reason) as caught:
            write_file(path, lambda stream: stream.write(b"x"))
        assert (caught.value.where, bool(caught.value.hint)) == (path, True)
    (tmp_path / "file").touch()
    with pytest.raises(WriteFault, match="cannot make the directory"):
        make_directory("file/folder")

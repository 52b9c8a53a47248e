"""Files of the system are replaced as a whole or stay as they were."""

import os
import stat

import pytest

from einc_runtime.disk import write_file


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

    with pytest.raises(type(error)):
        write_file(target, fail)
    assert target.read_bytes() == b"older"
    assert os.listdir(tmp_path) == ["plan.bin"]


def test_a_link_stays_one_and_a_device_is_written_directly(tmp_path):
    (tmp_path / "there").write_bytes(b"older")
    (tmp_path / "link").symlink_to("there")
    write_file(tmp_path / "link", lambda stream: stream.write(b"newer"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_bytes() == b"newer"
    write_file("/dev/null", lambda stream: stream.write(b"gone"))
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "no" / "plan.bin", lambda stream: stream.write(b"x"))

import pytest

from headrace_api.v1alpha1.records import RunPhase, StudyRecord
from headrace_tuner.errors import LeaseLost, StoreUnavailable, TunerError
from headrace_tuner.records.store import FolderStore, read_all

STUDY = StudyRecord(phase=RunPhase.SEARCHING)


def test_a_record_that_cannot_be_read_is_named() -> None:
    with pytest.raises(TunerError, match=r"trial-0003.json.*Delete these entries"):
        read_all({"trial-0003.json": '{"number": -1}', "lease.json": "whatever"})


async def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="file"):
        await FolderStore(tmp_path / "file" / "below").acquire()
    with pytest.raises(LeaseLost, match="acquire it"):
        await FolderStore(tmp_path).save(STUDY)


async def test_a_folder_keeps_what_was_written(tmp_path) -> None:
    store = FolderStore(tmp_path / "records")
    await store.acquire()
    await store.save(STUDY)
    await store.release()
    assert (await FolderStore(tmp_path / "records").load()).study == STUDY

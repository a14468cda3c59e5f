"""Videos: chunks and their frames, odd and broken files, resuming, narrated decks, the agent's view of a chunk."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pandas as pd
import pytest
from conftest import RankedEngine, ScriptedPolicy
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny_checkpoints import make_checkpoint

from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.memory_items import KINDS, kinds_of, nearest_frames, observations
from vrag_nb.agent.memory_records import Remembered
from vrag_nb.agent.memory_replay import contexts
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Generation
from vrag_nb.agent.task_settings import MemorySettings
from vrag_nb.agent.trajectory import observation_message
from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.documents.film import Film, probe
from vrag_nb.documents.merging import Part, merge_corpora
from vrag_nb.documents.narrated import CHUNK_SECONDS, narrate, plan
from vrag_nb.documents.pages import page_image, prepare_corpus
from vrag_nb.documents.rendered import SourceError
from vrag_nb.documents.settings import RenderSettings, VideoSettings
from vrag_nb.documents.sources import VideoSource
from vrag_nb.documents.video import sample
from vrag_nb.records import Frame, MetaInfo, Page, Question, read_pages, write_pages
from vrag_nb.retrieval.embedders import load_embedder
from vrag_nb.retrieval.engine import SearchEngine, build_index

SIZE = (160, 120)
SHORT = VideoSettings(chunk_seconds=2, frame_rate=2)


def grey(index: int) -> Image.Image:
    """Picture number `index`: its shade says which it is."""
    return Image.new("RGB", SIZE, (8 * index % 256,) * 3)


def shade(image: Image.Image) -> int:
    """The number of a picture made by `grey`, from its middle."""
    return round(image.convert("L").getpixel((image.width // 2, image.height // 2)) / 8)  # type: ignore[operator]


def make_video(
    path: Path,
    frames: int = 25,
    rate: int = 5,
    codec: str = "mpeg4",
    at: list[int] | None = None,
    rotation: float = 0,
    draw=grey,
    pixels: str = "yuv420p",
    **options: str,
) -> Path:
    """A video of `frames` pictures; `at`: their stamps, in units of 1 / rate; `options`: the codec's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    muxing = {"fflags": "+bitexact", "avoid_negative_ts": "disabled"}
    with av.open(str(path), "w", options=muxing) as container:
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = *draw(0).size, pixels
        stream.codec_context.thread_count = 1
        stream.codec_context.gop_size = 6
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(frames):
            image = draw(number)
            frame = av.VideoFrame.from_ndarray(np.asarray(image), "rgba" if image.mode == "RGBA" else "rgb24")
            frame.pts, frame.time_base = at[number] if at else number, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def make_sound(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), dtype=np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 8000, 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def prepare(documents: Path, corpus: Path, video: VideoSettings = SHORT, **options):
    return prepare_corpus(documents, corpus, dpi=72, workers=1, progress=False, video=video, **options)


def snapshot(corpus: Path) -> dict[str, bytes]:
    return {str(path.relative_to(corpus)): path.read_bytes() for path in sorted(corpus.rglob("*")) if path.is_file()}


def render(path: Path, video: VideoSettings = SHORT, **options):
    """All chunks of a video, in this process."""
    chosen = RenderSettings(video=video, **options)
    return list(VideoSource().render(path, 1, VideoSource().count(path, chosen), chosen))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of five seconds beside a picture, prepared: chunks of 2, 2 and 1 seconds, two frames a second."""
    folder = tmp_path_factory.mktemp("video")
    make_video(folder / "documents" / "talk.mp4")
    Image.new("L", (30, 40), 9).save(folder / "documents" / "scan.png")
    report = prepare(folder / "documents", folder / "corpus")
    assert (report.documents, report.pages, report.skipped, report.notes) == (2, 4, [], [])
    return folder / "corpus"


def test_a_video_becomes_chunks_with_their_frames(corpus):
    pages = {page.page_id: page for page in read_pages(corpus)}
    assert list(pages) == ["scan_1", "talk_1", "talk_2", "talk_3"]
    assert [page.kind for page in pages.values()] == ["page", "video", "video", "video"]
    clips = [pages[f"talk_{number}"].video for number in (1, 2, 3)]
    assert [(clip.start, clip.end) for clip in clips] == [(0, 2), (2, 4), (4, 5)]
    assert [frame.seconds for clip in clips for frame in clip.frames] == [n / 2 for n in range(10)]
    for clip, page in zip(clips, list(pages.values())[1:], strict=True):
        drawn = page_image(corpus, page)
        assert drawn.size == (page.width, page.height)
        for frame in clip.frames:
            with Image.open(corpus / frame.image) as image:
                assert (image.size, shade(image)) == (SIZE, int(frame.seconds * 5)), "what is on screen then"
            assert shade(drawn.crop(frame.box)) == int(frame.seconds * 5), "the sheet's box holds that frame"


def test_a_corpus_without_videos_is_as_it_was(corpus, tmp_path):
    (tmp_path / "documents").mkdir()
    Image.new("L", (30, 40), 9).save(tmp_path / "documents" / "scan.png")
    prepare(tmp_path / "documents", tmp_path / "corpus")
    table = pd.read_parquet(tmp_path / "corpus" / "pages.parquet")
    assert list(table.columns) == ["page_id", "document", "page", "image", "width", "height", "text", "sha256"]
    assert b"video" not in (tmp_path / "corpus" / ".prep" / "scan.json").read_bytes()
    assert b"chunk_seconds" not in (tmp_path / "corpus" / "prep_report.json").read_bytes()
    assert (corpus / ".prep" / "scan.json").read_bytes() == (tmp_path / "corpus" / ".prep" / "scan.json").read_bytes()
    page = Page(page_id="a_1", document="a", page=1, image="pages/a_1.png", width=1, height=1)
    assert "video" not in page.model_dump()


def test_a_rerun_takes_what_is_there_and_ends_with_the_same_bytes(tmp_path):
    documents, corpus = tmp_path / "documents", tmp_path / "corpus"
    make_video(documents / "talk.mp4")
    prepare(documents, corpus)
    first = snapshot(corpus)
    again = prepare(documents, corpus)
    assert (again.rendered, again.reused, snapshot(corpus)) == (0, 1, first)
    (corpus / "pages" / "talk_2.003.png").unlink()  # as after a kill: a record is not enough
    (corpus / "pages" / ".talk_9.1.partial").touch()
    assert prepare(documents, corpus).rendered == 1
    assert snapshot(corpus) == first
    longer = prepare(documents, corpus, VideoSettings(chunk_seconds=5, frame_rate=1))
    assert (longer.rendered, longer.pages) == (1, 1)
    assert sorted(path.name for path in (corpus / "pages").iterdir()) == [
        *(f"talk_1.{number:03d}.png" for number in range(1, 6)), "talk_1.png"
    ]  # fmt: skip


def test_bad_videos_are_named_and_the_rest_goes_on(tmp_path):
    documents, corpus = tmp_path / "documents", tmp_path / "corpus"
    good = make_video(documents / "good.mp4").read_bytes()
    (documents / "zero.mp4").touch()
    (documents / "text.mkv").write_bytes(b"no video at all")
    (documents / "list.mp4").write_bytes(b"#EXTM3U\n#EXTINF:5,\ngood.mp4\n#EXT-X-ENDLIST\n")
    (documents / "cut.mp4").write_bytes(good[: len(good) // 2])  # its index was at the end
    make_sound(documents / "sound.mp4")
    make_video(documents / "long.mp4", frames=40)
    make_video(documents / "large.avi", frames=2, draw=lambda number: Image.new("RGB", (640, 480)))
    report = prepare(documents, corpus, max_pages=3, max_page_pixels=200_000)
    reasons = {entry.file: entry.reason for entry in report.skipped}
    assert "zero bytes" in reasons.pop("zero.mp4")
    assert "broken video" in reasons.pop("text.mkv")
    assert "broken video" in reasons.pop("list.mp4"), "a playlist could name other files"
    assert "broken video" in reasons.pop("cut.mp4")
    assert "audio only" in reasons.pop("sound.mp4")
    assert "4 chunks, more than the limit of 3" in reasons.pop("long.mp4")
    assert "640 x 480" in reasons.pop("large.avi")
    assert not reasons
    assert {page.document for page in read_pages(corpus)} == {"good"}


@pytest.mark.parametrize("name", ["a.mkv", "a.avi"])
def test_a_truncated_video_is_read_as_far_as_it_goes(tmp_path, name):
    whole = make_video(tmp_path / name, frames=50, draw=lambda n: Image.effect_noise(SIZE, 60 + n).convert("RGB"))
    content = whole.read_bytes()
    cut = tmp_path / f"cut{whole.suffix}"
    cut.write_bytes(content[: len(content) * 6 // 10])
    chunks = render(cut)
    assert 2 <= len(chunks) < len(render(whole)) == 5
    assert "the file says 10.0 s and holds" in chunks[-1].note


def test_damage_in_the_middle_costs_only_its_frames(tmp_path):
    path = make_video(tmp_path / "a.avi", frames=50, draw=lambda n: Image.effect_noise(SIZE, 60 + n).convert("RGB"))
    content = bytearray(path.read_bytes())
    third = len(content) // 3
    content[third : third + len(content) // 4] = bytes(len(content) // 4)
    path.write_bytes(bytes(content))
    found = render(path)
    said = [str(one) if isinstance(one, SourceError) else one.note for one in found]
    assert any("cannot be decoded" in words or "holds" in words for words in said)
    assert any(not isinstance(one, SourceError) for one in found)


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mkv", "libx264"), ("a.webm", "libvpx-vp9"), ("a.avi", "mpeg4"), ("a.mov", "libx264")]
)
def test_every_container_gives_the_same_pictures(tmp_path, name, codec):
    chunks = render(make_video(tmp_path / name, codec=codec))
    assert [chunk.span for chunk in chunks] == [(0, 2), (2, 4), (4, 5)]
    stills = [still for chunk in chunks for still in chunk.stills]
    assert [abs(shade(still.image) - int(still.seconds * 5)) <= 1 for still in stills] == [True] * 10


def test_pictures_of_an_avi_come_in_the_order_they_are_shown(tmp_path):
    """H.264 with B-frames, which AVI stamps in the order of decoding."""
    chunks = render(make_video(tmp_path / "a.avi", codec="libx264", bf="3"))
    stills = [still for chunk in chunks for still in chunk.stills]
    assert [abs(shade(still.image) - int(still.seconds * 5)) <= 1 for still in stills] == [True] * 10
    assert [chunk.note for chunk in chunks] == [""] * 3


def test_a_start_other_than_zero_and_an_edit_list_lose_nothing(tmp_path):
    late = make_video(tmp_path / "late.mkv", codec="libx264", at=list(range(500, 525)))
    edited = make_video(tmp_path / "edited.mp4", codec="libx264", at=list(range(-15, 10)))  # three of five seconds
    assert [(probe(path).seconds, probe(path).note) for path in (late, edited)] == [(5, ""), (2, "")]


def test_what_is_transparent_is_white(tmp_path):
    def draw(number: int) -> Image.Image:
        image = Image.new("RGBA", SIZE, (0, 0, 0, 0))
        image.paste((255, 0, 0, 255), (0, 0, 80, 120))
        return image

    chunk, *_ = render(make_video(tmp_path / "a.mov", codec="png", pixels="rgba", draw=draw))
    image = chunk.stills[0].image
    assert [image.getpixel(place) for place in ((20, 60), (140, 60))] == [(255, 0, 0), (255, 255, 255)]


def test_a_varying_rate_shows_a_still_picture_once(tmp_path):
    path = make_video(tmp_path / "a.mkv", frames=5, at=[0, 1, 2, 17, 24], codec="libx264")  # still from 0.4 s to 3.4 s
    first, second, third = render(path)
    assert [(still.seconds, shade(still.image)) for still in first.stills] == [(0.0, 0), (0.5, 2)]
    assert [(still.seconds, shade(still.image)) for still in second.stills] == [(2.0, 2), (3.5, 3)]
    assert third.span == (4.0, 5.0)


def test_a_video_without_a_duration_is_measured(tmp_path):
    path = make_video(tmp_path / "a.mkv", codec="libx264")
    content = path.read_bytes()
    assert content.count(b"\x44\x89\x88") == 1, "the duration's element becomes a void one"
    path.write_bytes(content.replace(b"\x44\x89\x88", b"\xec\x89\x88", 1))
    film = probe(path)
    assert film.claimed == 0
    assert film.seconds == pytest.approx(5)


@pytest.mark.parametrize(("angle", "corner"), [(90, (0, 1)), (-90, (1, 0)), (180, (1, 1))])
def test_a_turned_video_is_turned_back(tmp_path, angle, corner):
    def draw(number: int) -> Image.Image:
        image = Image.new("RGB", SIZE)
        image.paste("white", (0, 0, 80, 60))  # top left
        return image

    (chunk,) = render(make_video(tmp_path / "a.mp4", frames=5, rotation=angle, draw=draw))
    image = chunk.stills[0].image
    assert image.size == (SIZE if angle == 180 else SIZE[::-1])
    x, y = (round((0.25 + 0.5 * side) * length) for side, length in zip(corner, image.size, strict=True))
    assert image.convert("L").getpixel((x, y)) > 200


def test_an_odd_angle_is_left_and_said(tmp_path):
    (chunk,) = render(make_video(tmp_path / "a.mp4", frames=5, rotation=33))
    assert "turned by" in chunk.note
    assert chunk.stills[0].image.size == SIZE


def test_large_frames_are_scaled_down_and_few_are_kept(tmp_path):
    path = make_video(tmp_path / "a.mp4", frames=20, draw=lambda n: Image.new("RGB", (640, 360), (9 * n,) * 3))
    few = VideoSettings(chunk_seconds=4, frame_rate=5, max_frames=3, max_frame_pixels=20_000, max_sheet_pixels=30_000)
    (chunk,) = render(path, few)
    assert [still.seconds for still in chunk.stills] == [0.0, 1.333, 2.667]
    assert all(still.image.width * still.image.height <= 20_000 for still in chunk.stills)
    assert sum((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in (still.box for still in chunk.stills)) <= 30_000


@given(
    stamps=st.lists(st.integers(0, 10**6), min_size=1, max_size=40, unique=True).map(sorted),
    length=st.floats(0.1, 300),
    rate=st.floats(0.05, 10),
    most=st.integers(1, 20),
)
def test_sampled_moments_are_in_the_chunk_and_each_picture_comes_once(stamps, length, rate, most):
    film = Film(1, 1, Fraction(1, 1000), tuple(stamps), seconds=2000.0)
    chosen = VideoSettings(chunk_seconds=length, frame_rate=rate, max_frames=most)
    moments = sample(film, 50.0, 50.0 + length, chosen)
    seconds, pictures = [one for one, _ in moments], [stamp for _, stamp in moments]
    assert 1 <= len(moments) <= most
    assert all(50.0 <= second < 50.0 + length for second in seconds)
    assert seconds == sorted(seconds)
    assert pictures == sorted(set(pictures))


def test_a_hundred_damaged_files_do_not_stop_a_run(tmp_path):
    rng = random.Random(0)
    whole = {
        suffix: make_video(tmp_path / f"whole{suffix}", frames=10, codec=codec).read_bytes()
        for suffix, codec in ((".mp4", "libx264"), (".mkv", "mpeg4"), (".avi", "mpeg4"), (".webm", "libvpx-vp9"))
    }
    documents = tmp_path / "documents"
    documents.mkdir()
    for number in range(100):
        suffix = list(whole)[number % 4]
        content = bytearray(whole[suffix])
        for _ in range(rng.choice([1, 3, 30, 300])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        if rng.random() < 0.2:
            del content[rng.randrange(len(content)) :]
        (documents / f"{number:02d}{suffix}").write_bytes(bytes(content))
    make_video(documents / "good.mp4")
    report = prepare(documents, tmp_path / "corpus", max_pages=20)
    read = {page.document for page in read_pages(tmp_path / "corpus")}
    named = {entry.file.partition(".")[0] for entry in report.skipped}
    assert "good" in read - named
    assert read | named == {"good", *(f"{number:02d}" for number in range(100))}, "each is read, or named, or both"
    assert all(entry.reason for entry in report.skipped)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_a_source_error_or_chunks(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "damage"
    whole = folder / "whole.mkv"
    content = bytearray((whole if whole.is_file() else make_video(whole, frames=10)).read_bytes())
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)))):
        content[place] = value
    path = folder / "damaged.mkv"
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    try:
        found = render(path, max_pages=20)
    except SourceError:
        return
    assert all(str(one) if isinstance(one, SourceError) else one.stills for one in found)


@pytest.fixture(scope="module")
def narrated():
    pdf, questions = pretraining_deck(3)
    return pdf, questions, *narrate(pdf, questions, seed=1)


def test_a_narrated_deck_is_the_same_every_time(narrated, tmp_path):
    pdf, questions, video, asked = narrated
    again, asked_again = narrate(pdf, questions, seed=1)
    assert asked_again == asked
    stills = []
    for name, film in (("first", video), ("again", again)):  # x264's bytes may differ, what they show may not
        path = tmp_path / f"{name}.mp4"
        path.write_bytes(film)
        chunks = render(path, VideoSettings(chunk_seconds=CHUNK_SECONDS))
        stills.append([still for chunk in chunks for still in chunk.stills])
    for one, other in zip(*stills, strict=True):
        assert one.seconds == other.seconds
        assert np.abs(np.asarray(one.image, float) - np.asarray(other.image, float)).mean() < 1
    assert narrate(pdf, questions, seed=2)[1] != asked


def test_the_gold_chunk_shows_the_value_in_its_span_only(narrated, tmp_path):
    _, _, video, asked = narrated
    path = tmp_path / f"{asked[0].document}.mp4"
    path.write_bytes(video)
    chunks = render(path, VideoSettings(chunk_seconds=CHUNK_SECONDS))
    boxes = [question for question in asked if question.meta_info.source_type == "overlay"]
    assert boxes
    assert len({question.uid for question in asked}) == len(asked)
    for question in asked:
        start, end = question.meta_info.model_extra["reference_span"]
        (number,) = question.meta_info.reference_page
        assert chunks[number - 1].span[0] <= start < end <= chunks[number - 1].span[1]
        assert question.gold_page_ids == [f"{path.stem}_{number}"]
    start, end = boxes[0].meta_info.model_extra["reference_span"]
    chunk = chunks[boxes[0].meta_info.reference_page[0] - 1]
    yellow = {still.seconds: has_yellow(still.image) for still in chunk.stills}
    assert all(seen for second, seen in yellow.items() if start <= second < end)


def has_yellow(image: Image.Image) -> bool:
    pixels = np.asarray(image).astype(int)
    return ((pixels[..., 0] > 220) & (pixels[..., 1] > 190) & (pixels[..., 2] < 120)).mean() > 0.01


@given(seed=st.integers(), pages=st.integers(1, 40), chunk_seconds=st.integers(8, 60))
def test_no_page_and_no_box_is_on_screen_in_two_chunks(seed, pages, chunk_seconds):
    shots = plan(random.Random(seed), pages, chunk_seconds)
    assert [shot.page for shot in shots] == list(range(1, pages + 1))
    assert all(one.end == other.start for one, other in itertools.pairwise(shots))
    for shot in shots:
        assert shot.end - shot.start >= 4
        assert shot.start // chunk_seconds == (shot.end - 1) // chunk_seconds
        if shot.overlay:
            assert shot.start <= shot.overlay.start < shot.overlay.end <= shot.end


def test_questions_name_their_document_whatever_it_is():
    for name, document in (("a.pdf", "a"), ("a.mp4", "a"), ("b.c.mkv", "b.c"), ("a.mp4.pdf", "a.mp4"), ("a", "a")):
        question = Question(uid="u", query="q", reference_answer="", meta_info=MetaInfo(file_name=name))
        assert question.document == document


# --- the agent --------------------------------------------------------------------------------------------------------

SMALL = MemorySettings(items=("image", "video"), max_pixels=64 * 28 * 28, memory_pixels=64 * 28 * 28)


def test_a_search_shows_frames_under_their_seconds_within_one_image_budget(corpus):
    store = PageStore(corpus)
    shown = observations(KINDS["video"], store.page("talk_2"), "Video 1", SMALL)
    message = observation_message(shown, store)
    assert message.text == "\nVideo 1, 2.0 s to 4.0 s:\n\n2.0 s:\n\n2.5 s:\n\n3.0 s:\n\n3.5 s:\n"
    assert [shade(image.resolved()) for image in message.images] == [10, 12, 15, 17]
    assert sum(image.size[0] * image.size[1] for image in message.images) <= SMALL.max_pixels
    assert observations(KINDS["video"], store.page("scan_1"), "Video 1", SMALL) == []


def test_beside_videos_pictures_are_pages_alone(corpus):
    store = PageStore(corpus)
    image, video = kinds_of(SMALL)
    assert observations(image, store.page("talk_1"), "Picture 1", SMALL) == []
    assert len(observations(image, store.page("scan_1"), "Picture 1", SMALL)) == 1
    assert len(observations(video, store.page("talk_1"), "Video 1", SMALL)) > 1
    (alone,) = kinds_of(MemorySettings())
    [sheet] = observations(alone, store.page("talk_1"), "Picture 1", MemorySettings())
    assert sheet.crop_box is None, "without videos a chunk is a picture"


class SheetsOnly:
    """Pages as a store gives them, without the folder they lie in."""

    def __init__(self, store: PageStore) -> None:
        self.page, self.image = store.page, store.image


@pytest.mark.parametrize("wrap", [lambda store: store, SheetsOnly])
def test_memory_shows_the_frames_nearest_to_the_key_timestamps(corpus, wrap):
    store = PageStore(corpus)
    page, kind, pages = store.page("talk_2"), KINDS["video"], wrap(store)
    pixels = 20 * 28 * 28
    size = kind.recalled_size(page, pixels, SMALL)
    item = Remembered(name="talk_2", kind="video", nodes=["a"], energy=1, pixels=pixels, shown_size=size)
    item.timestamps = [3.4, 2.1, 99.0]
    parts = kind.recall(page, item, pages, SMALL)
    assert [part.text for part in parts[::2] if hasattr(part, "text")] == ["\ntalk_2, kept by a, 2.0 s to 4.0 s:\n"]
    images = [part for part in parts if not hasattr(part, "text")]
    assert [shade(image.resolved()) for image in images] == [10, 17]
    assert sum(image.size[0] * image.size[1] for image in images) <= pixels
    item.timestamps = []
    assert len([part for part in kind.recall(page, item, pages, SMALL) if not hasattr(part, "text")]) >= 1
    item.pixels, item.shown_size = 100, kind.recalled_size(page, 100, SMALL)
    assert kind.recall(page, item, pages, SMALL) == []


@given(times=st.lists(st.floats(-10, 100), max_size=8), seconds=st.lists(st.integers(0, 60), min_size=1, unique=True))
def test_nearest_frames_are_nearest_and_in_order(times, seconds):
    frames = [Frame(seconds=one, image="", width=1, height=1, box=(0, 0, 1, 1)) for one in sorted(seconds)]
    found = [frame.seconds for frame in nearest_frames(frames, times)]
    assert found == sorted(set(found))
    assert all(min(abs(one - time) for one in found) == min(abs(one - time) for one in seconds) for time in times)
    assert bool(found) == bool(times)


def test_an_agent_keeps_the_key_frames_of_a_chunk(corpus):
    calls = [
        '{"name": "add_search_node", "arguments": {"id": "a", "query": "the value"}}',
        '{"name": "summarize_and_memorize", "arguments": {"summarize": "seen", "memorize": [{"information_id": '
        '"Video 1", "is_useful": true, "priority_score": 5, "key_timestamp": [3.0]}]}}',
        '{"name": "add_answer_node", "arguments": {"parent_ids": ["a"], "answer": "15"}}',
    ]
    policy = ScriptedPolicy([f"<tool_call>{call}</tool_call>" for call in calls])
    environment = MemoryEnvironment(RankedEngine(["talk_2", "scan_1"]), corpus, SMALL)
    session = environment.start("What is shown?")
    for step in range(3):
        if step == 1:
            assert [one.label for one in session.offered] == ["Picture 1", "Video 1"]
            assert [shade(image.resolved()) for image in session.conversation[-1].images[1:]] == [10, 12, 15, 17]
        if step == 2:
            assert [shade(image.resolved()) for image in session.conversation[-1].images] == [15]
            assert "3.0 s:" in session.conversation[-1].text
        environment.advance([session], [Generation(policy.script[step])])
    done = environment.finish(session)
    assert (done.answer, done.status, done.retrieved_page_ids) == ("15", "answered", ["scan_1", "talk_2"])
    again = contexts(done, PageStore(corpus))
    assert [len(one[-1].images) for one in again] == [0, 5, 1]


def test_a_merged_corpus_has_its_videos_frames(corpus, tmp_path):
    other = tmp_path / "documents"
    make_video(other / "talk.mp4", frames=10)
    prepare(other, tmp_path / "other")
    merge_corpora([Part("one", corpus), Part("two", tmp_path / "other")], tmp_path / "out")
    pages = read_pages(tmp_path / "out")
    assert {page.document for page in pages} == {"scan", "talk", "two__talk"}
    assert all((tmp_path / "out" / image).is_file() for page in pages for image in page.images)
    (page,) = [page for page in pages if page.document == "two__talk"]
    assert page.images[1].startswith("pages/two__talk_1.")


def test_chunks_are_embedded_by_their_frames_where_the_embedder_takes_videos(corpus, tmp_path):
    kind = "gve-3b"
    embedder = load_embedder(kind, make_checkpoint(kind, tmp_path / kind), device="cpu", batch_size=3)
    pages = {page.page_id: page for page in read_pages(corpus)}
    build_index(corpus, tmp_path / "index", embedder, progress=False)
    index = SearchEngine.open(corpus, tmp_path / "index", embedder).index
    for name, page in pages.items():
        if page.video:
            frames = [Image.open(corpus / frame.image).convert("RGB") for frame in page.video.frames]
            (wanted,) = embedder.embed_videos([frames], seconds=(page.video.end - page.video.start) / len(frames))
            (as_a_sheet,) = embedder.embed_pages([page_image(corpus, page)], [""])
            assert not np.allclose(as_a_sheet, wanted, atol=1e-3)
        else:
            (wanted,) = embedder.embed_pages([page_image(corpus, page)], [""])
        np.testing.assert_allclose(index.vectors(index.row_of[name]), wanted, atol=2e-3)

    odd = [page.model_copy(deep=True) for page in pages.values()]
    odd[-1].video.frames[0].width += 2  # a stream that changed its size
    copy = tmp_path / "copy"
    merge_corpora([Part("one", corpus)], copy)
    write_pages(copy, odd)
    build_index(copy, tmp_path / "odd", embedder, progress=False)
    index = SearchEngine.open(copy, tmp_path / "odd", embedder).index
    (as_a_sheet,) = embedder.embed_pages([page_image(copy, odd[-1])], [""])
    np.testing.assert_allclose(index.vectors(index.row_of[odd[-1].page_id]), as_a_sheet, atol=2e-3)
    with pytest.raises(TypeError, match="bm25 takes no videos"):
        load_embedder("bm25").embed_videos([[]])

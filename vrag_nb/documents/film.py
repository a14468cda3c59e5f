"""Videos through PyAV (FFmpeg): when their pictures are on screen, and the pictures.

    film = probe(path)                              # no decoding: a pass over the packets
    for stamp, frame in decode(path, film, film.on_screen(12.0), max_pixels): ...

Containers say little that can be relied on - no duration, a wrong one, a rate that varies - so the timeline is read
from the packets' own time stamps; seconds count from the first picture. Of a broken file everything is read that can
be decoded. FFmpeg is kept to container formats that hold pictures and sound only (a playlist could name other files
and addresses), decodes with one thread, so that the same file gives the same frames, and is told the largest frame it
may decode.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import av
import av.logging
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vrag_nb.documents.rendered import SourceError

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg"
USUAL_RATE = Fraction(25)  # frames a second where neither stamps nor the file say
BROKEN = (FFmpegError, ValueError, OverflowError)  # what PyAV raises on damage

av.logging.set_level(av.logging.PANIC)  # FFmpeg's complaints go to the report, not to stderr


@dataclass(frozen=True)
class Film:
    """A video's timeline. stamps: the time stamps of its pictures, ascending, in units of `unit` seconds; where `timed`
    is False the file has none and they are counted. reordered: the stamps stand in the order of decoding, so that the
    pictures' own are wrong and they get them one after another. seconds: its length. claimed: what the file says of it,
    0 if nothing. damage: why its packets end early, if they do. aspect: width of a pixel over its height."""

    width: int
    height: int
    unit: Fraction
    stamps: tuple[int, ...]
    seconds: float
    timed: bool = True
    claimed: float = 0.0
    damage: str = ""
    aspect: float = 1.0
    reordered: bool = False

    @property
    def counted(self) -> bool:
        """Whether a picture is known by how many come before it, so that decoding must begin at the first."""
        return self.reordered or not self.timed

    @property
    def note(self) -> str:
        """What a reader should know of the whole video."""
        notes = []
        if self.claimed > 1.05 * self.seconds + 1:
            notes.append(f"the file says {self.claimed:.1f} s and holds {self.seconds:.1f} s")
        if self.damage:
            notes.append(f"read up to {self.seconds:.1f} s: {self.damage}")
        if not self.timed:
            notes.append(f"without time stamps: counted at {float(1 / self.unit):g} pictures a second")
        return "; ".join(notes)

    def on_screen(self, seconds: float) -> int:
        """The stamp of the picture that is on screen then."""
        place = bisect_right(self.stamps, self.stamps[0] + seconds / float(self.unit) + 0.5)
        return self.stamps[max(0, place - 1)]


def probe(path: Path) -> Film:
    """The timeline of a video, from its packets. Raises SourceError for a file that holds no video."""
    found = path.stat()
    return _probe(path, found.st_size, found.st_mtime_ns)


def decode(path: Path, film: Film, first: int, max_pixels: int) -> Iterator[tuple[int, VideoFrame]]:
    """(stamp, frame) from the picture of stamp `first` on, or from somewhat before it."""
    if not film.counted and first > film.stamps[0]:
        frames = _decode_from(path, film, first, max_pixels)
        head = next(frames, None)
        if head is not None and head[0] <= first:  # a broken index leads past it: then from the start
            yield head
            yield from frames
            return
    yield from _decode_from(path, film, None, max_pixels)


def _decode_from(path: Path, film: Film, first: int | None, max_pixels: int) -> Iterator[tuple[int, VideoFrame]]:
    with _open(path) as (container, stream):
        stream.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {"max_pixels": str(max_pixels)}
        if first is not None:
            try:
                container.seek(first, stream=stream)
            except FFmpegError:
                return
        for number, frame in enumerate(_frames(container, stream)):
            stamp = frame.pts if not film.counted else film.stamps[number] if number < len(film.stamps) else None
            if stamp is not None:
                yield stamp, frame


def _frames(container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    """Every frame that can be decoded; packets that cannot are passed over."""
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except BROKEN:  # the file ends here
            packet = None
        with suppress(*BROKEN):
            yield from stream.decode(packet)
        if packet is None:
            return


@contextmanager
def _open(path: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The container and its video stream, cover pictures not counted."""
    if path.stat().st_size == 0:
        raise SourceError("the file is empty (zero bytes)")
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    try:
        container = av.open(f"file:{path}", options=options, metadata_errors="replace")
    except BROKEN as error:
        raise SourceError(f"broken video: {_in_words(error)}") from None
    with container:
        streams = [one for one in container.streams.video if not one.disposition & av.stream.Disposition.attached_pic]
        if not streams:
            only = "audio only" if container.streams.audio else "no audio either"
            raise SourceError(f"holds no video stream ({only})")
        if streams[0].codec_context is None:
            raise SourceError("its codec is not one that can be decoded here")
        yield container, streams[0]


@lru_cache(maxsize=8)  # a worker takes a long video in several blocks
def _probe(path: Path, size: int, changed: int) -> Film:
    with _open(path) as (container, stream):
        stamps: list[int] = []
        count, ends, damage = 0, [0], ""
        try:
            for packet in container.demux(stream):
                if packet.size and not packet.is_discard:
                    count += 1
                    if packet.pts is not None:
                        stamps.append(packet.pts)
                        ends.append(packet.pts + max(0, packet.duration or 0))
        except BROKEN as error:
            damage = _in_words(error)
        if not count:
            raise SourceError("holds no frame" + (f": {damage}" if damage else ""))
        rate = _rate(stream)
        known = len(stamps) > count / 2 and bool(stream.time_base)
        unit = Fraction(stream.time_base) if known and stream.time_base else 1 / rate
        ordered = tuple(sorted(set(stamps))) if known else tuple(range(count))
        end = max(ends) if known else count
        if end <= ordered[-1]:  # no packet says how long it lasts
            end = ordered[-1] + max(1, round(1 / rate / unit))
        seconds = round(float((end - ordered[0]) * unit), 3)
        reordered = known and _is_reordered(container, stream, stamps)
        claimed, aspect = _claimed(container, stream), float(stream.sample_aspect_ratio or 1)
        if not 0.25 <= aspect <= 4:
            aspect = 1.0
        return Film(stream.width, stream.height, unit, ordered, seconds, known, claimed, damage, aspect, reordered)


def _is_reordered(container: InputContainer, stream: VideoStream, stamps: list[int]) -> bool:
    """Whether B-frames, which are shown before what they are decoded after, have stamps in the order of decoding.

    AVI knows no other order; of some codecs FFmpeg's parsers put it right.
    """
    return container.format.name == "avi" and bool(stream.codec_context.has_b_frames) and stamps == sorted(stamps)


def _rate(stream: VideoStream) -> Fraction:
    """Frames a second as far as the file says."""
    for rate in (stream.average_rate, stream.guessed_rate):
        if rate and 0.01 <= rate <= 1000:
            return Fraction(rate)
    return USUAL_RATE


def _claimed(container: InputContainer, stream: VideoStream) -> float:
    """The length in seconds that the file gives, also as a number of frames, 0 where it gives none."""
    own = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
    whole = (container.duration or 0) / av.time_base
    if "matroska" in container.format.name:  # whose duration runs from 0 and not from the first picture
        whole -= max(0, container.start_time or 0) / av.time_base
    if "mp4" in container.format.name:  # which counts frames that an edit list leaves out
        return max(0.0, own or whole)
    counted = float(stream.frames / stream.average_rate) if stream.frames and stream.average_rate else 0.0
    return max(0.0, own or whole, counted)


def _in_words(error: Exception) -> str:
    """FFmpeg's message without the file's name, which the report gives."""
    said = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return said.strip() or type(error).__name__

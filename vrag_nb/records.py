"""The records every part of the pipeline exchanges, and how they are stored.

One file, so that a field has one meaning everywhere:

- `Question`: the unified question record of ViDoRAG / VRAG-RL (`uid, query, reference_answer, meta_info`) plus the
  gold regions that only a generated corpus can know.
- `Page`: one page image of a corpus, its text layer beside it. A chunk of a video is a page too: its image is a sheet
  of the chunk's frames, and its `video` says when they are.
- `Hit`: one search result.

Coordinate frames. *Page fractions*: [x0, y0, x1, y1] in 0..1 of the page, origin top left; independent of dpi, used in
every stored gold region. *Page pixels*: pixels of the page image on disk. *Shown pixels*: pixels of the image as the
model saw it. Only `agent.geometry` converts between the last two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    SerializerFunctionWrapHandler,
    StrictBool,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from vrag_nb.document_names import document_of
from vrag_nb.files import replacing, write_jsonl, write_text


def _no_boolean(page: object) -> object:
    if isinstance(page, bool):  # which Python takes for 0 and 1
        raise ValueError(f"{page} is no page number: pages are counted from 1")
    return page


def without_surrogates(text: str) -> str:
    """The text with "?" for every lone surrogate, half of a character as a cut reply has it: no file can hold one."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty: fill it in")
    return text


PageNumber = Annotated[PositiveInt, BeforeValidator(_no_boolean)]
Words = Annotated[str, AfterValidator(_not_blank)]


class Region(BaseModel):
    """A gold region: `box` in page fractions on the 1-based `page` of the question's document."""

    model_config = ConfigDict(extra="forbid")
    page: PageNumber
    box: tuple[float, float, float, float]

    @field_validator("box")
    @classmethod
    def _box_is_ordered(cls, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        x0, y0, x1, y1 = box
        if not (0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1):
            raise ValueError(f"box {box} is not [x0, y0, x1, y1] in page fractions with x0 < x1 and y0 < y1")
        return box


class _FurtherFields(BaseModel):
    """What the further fields of a `meta_info` that have a meaning here may hold. Records without them have none."""

    answers: list[str] | None = None  # what else is right
    needs_crop: StrictBool | None = None


class MetaInfo(BaseModel):
    """Where a question comes from. `file_name` is the PDF's or the video's name; `reference_page` holds 1-based gold
    pages, of a video its chunks. A further field `reference_documents` names the document of each gold page where they
    are of several; `reference_regions` are of the first one."""

    model_config = ConfigDict(extra="allow")
    file_name: str
    reference_page: list[PageNumber] = Field(default_factory=list)
    source_type: str = "unknown"  # what holds the answer: text | table | chart | layout | ...
    query_type: str = "unknown"  # how it is reached: single_hop | multi_hop | comparison | arithmetic | unanswerable
    reference_regions: list[Region] = Field(default_factory=list)

    @model_validator(mode="after")
    def _further_fields_fit(self) -> MetaInfo:
        _FurtherFields.model_validate(self.model_extra or {})  # an error there names the field here
        return self

    @model_validator(mode="after")
    def _documents_fit_the_pages(self) -> MetaInfo:
        documents = (self.model_extra or {}).get("reference_documents")
        if documents and len(documents) != len(self.reference_page):
            raise ValueError(
                f"reference_documents names {len(documents)} documents for {len(self.reference_page)} gold pages: "
                "name each page's"
            )
        return self


class Question(BaseModel):
    """One question in the unified format. An unanswerable one has the answer "not answerable" and no gold page."""

    model_config = ConfigDict(extra="allow")
    uid: Words
    query: Words
    reference_answer: str
    meta_info: MetaInfo

    @classmethod
    def asked(cls, words: str) -> Question:
        """A question that somebody typed: no reference, and a uid made from its text."""
        digest = hashlib.sha256(words.encode("utf-8")).hexdigest()[:12]
        return cls(uid=f"ask-{digest}", query=words, reference_answer="", meta_info=MetaInfo(file_name=""))

    @property
    def right_answers(self) -> list[str]:
        """The reference, and what else a data set takes for right (`meta_info.answers`)."""
        others = (self.meta_info.model_extra or {}).get("answers") or []
        return list(dict.fromkeys([self.reference_answer, *others]))

    @property
    def has_reference(self) -> bool:
        """Whether more is known of it than its words."""
        return bool(self.reference_answer or self.meta_info.file_name)

    @property
    def document(self) -> str:
        """The document's id, as prep makes it of the file's name."""
        return document_of(self.meta_info.file_name)

    @property
    def needed_facts(self) -> list[dict[str, Any]]:
        """What a generated corpus knows of each fact the answer needs (page, box, value, ...); none elsewhere."""
        return (self.meta_info.model_extra or {}).get("needed_facts", [])

    @property
    def needs_crop(self) -> bool:
        """Whether print that the answer needs is too small on the whole page, as far as the corpus knows."""
        return bool((self.meta_info.model_extra or {}).get("needs_crop"))

    @property
    def gold_documents(self) -> list[str]:
        """The document of each gold page."""
        named = (self.meta_info.model_extra or {}).get("reference_documents")
        return named or [self.document] * len(self.meta_info.reference_page)

    @property
    def gold_page_ids(self) -> list[str]:
        pages = zip(self.gold_documents, self.meta_info.reference_page, strict=True)
        return [page_id(document, page) for document, page in pages]

    def fact_page_id(self, fact: Mapping[str, Any]) -> str:
        """The page that one of `needed_facts` stands on."""
        return page_id(fact.get("document") or self.document, fact["page"])


class Frame(BaseModel):
    """One frame of a video's chunk.

    seconds: when it is on screen, from the video's start. image: its file, relative to the corpus folder; width x
    height: pixels of that file. box: where the frame lies on the chunk's sheet, (x0, y0, x1, y1) in page pixels.
    """

    seconds: float = Field(ge=0)
    image: str
    width: int = Field(ge=1)
    height: int = Field(ge=1)
    box: tuple[int, int, int, int]
    sha256: str = ""  # of the image file


class Clip(BaseModel):
    """The part of a video that a chunk is: from `start` to `end` (seconds), with its sampled frames in order."""

    start: float = Field(ge=0)
    end: float
    frames: list[Frame] = Field(min_length=1)


class Page(BaseModel):
    """One page image. `image` is a path relative to the corpus folder, `width` x `height` its page pixels.

    video: what a chunk of a video is; None, and then in no stored record, for a page.
    """

    page_id: str
    document: str
    page: int = Field(ge=1)
    image: str
    width: int
    height: int
    text: str = ""
    sha256: str = ""
    video: Clip | None = None

    @property
    def kind(self) -> Literal["page", "video"]:
        return "page" if self.video is None else "video"

    @property
    def images(self) -> list[str]:
        """Every image file the page has, relative to the corpus folder: its own, and its frames'."""
        return [self.image, *(frame.image for frame in (self.video.frames if self.video else []))]

    @model_serializer(mode="wrap")
    def _without_empty_video(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Records of pages stay what they were before there were videos, byte for byte."""
        fields = dump(self)
        if self.video is None:
            fields.pop("video", None)
        return fields


class Hit(BaseModel):
    """One search result: a page, its score under the retriever that found it, its 1-based rank."""

    page_id: str
    score: float
    rank: int


def as_question(question: str | Mapping[str, Any] | Question) -> Question | str:
    """A question given as its text, as `{"query": text}`, or whole. Raises ValueError where there is no text."""
    if isinstance(question, Question):
        return question
    if isinstance(question, Mapping) and {"uid", "reference_answer", "meta_info"} <= question.keys():
        return Question.model_validate(dict(question))
    text = question.get("query") if isinstance(question, Mapping) else question
    if not isinstance(text, str) or not text.strip():
        raise ValueError('a question is its text, or {"query": text}')
    return text


def page_id(document: str, page: int) -> str:
    """`{document}_{page}`, the page 1-based: the name upstream gives its page images."""
    return f"{document}_{page}"


def timed(seconds: float) -> str:
    """A moment of a video as it is shown and said: "12.0 s"."""
    return f"{seconds:.1f} s"


def read_questions(path: Path) -> list[Question]:
    """Read unified questions from `.json` (a list, or `{"examples": [...]}`), `.jsonl` or `.parquet`.

    Raises ValueError naming the file, the row and the field when a record does not fit.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no question file at {path}")
    questions, seen = [], set()
    for number, row in enumerate(_rows(path)):
        try:
            question = Question.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "record"
            raise ValueError(f"{path}: question {number}, field {field}: {first['msg']}") from None
        if question.uid in seen:
            raise ValueError(f"{path}: question {number}: uid {question.uid!r} appears twice; uids must be unique")
        seen.add(question.uid)
        questions.append(question)
    return questions


def question_format(path: Path) -> str:
    """The file's suffix in lower case: .json, .jsonl or .parquet. Raises ValueError for another."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".json", ".jsonl", ".parquet"):
        raise ValueError(f"{path}: unknown question format {suffix!r}; use .json, .jsonl or .parquet")
    return suffix


def _rows(path: Path) -> list[dict]:
    suffix = question_format(path)
    try:
        if suffix == ".parquet":
            return _parquet_rows(path)
        if suffix == ".jsonl":
            return list(_json_lines(path.read_text(encoding="utf-8-sig")))
        data = json.loads(path.read_text(encoding="utf-8-sig"))
        examples = data.get("examples") if isinstance(data, dict) else data
        if not isinstance(examples, list):
            raise ValueError('expected a list of questions, or {"examples": [...]}')
        return examples
    except KeyError as error:
        raise ValueError(f"{path} cannot be read as unified questions: it has no column {error}") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as unified questions: {error}") from error


def _parquet_rows(path: Path) -> list[dict]:
    """The rows, `meta_info` as JSON (as `write_questions` has it) or as a struct, whose columns have a null in rows
    without the field."""
    import pyarrow.parquet as pq  # here and below: workers that draw pages start a second sooner without it

    table, rows = pq.read_table(path), []
    own = [name for name in table.column_names if not name.startswith("__index_level_")]  # but the index pandas adds
    for row in table.select(own).to_pylist():
        meta = row["meta_info"]
        if isinstance(meta, str | bytes):
            meta = json.loads(meta)
        elif isinstance(meta, dict):
            meta = {field: value for field, value in meta.items() if value is not None}
        rows.append({**row, "meta_info": meta})
    return rows


def _json_lines(text: str) -> Iterator[dict]:
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines would cut at U+2028, too
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from None


def write_questions(path: Path, questions: Sequence[Question]) -> None:
    """Write questions as `.json` (upstream's `{"examples": [...]}`), `.jsonl` or `.parquet`, replacing atomically."""
    import pandas as pd

    path = Path(path)
    rows = [question.model_dump(mode="json") for question in questions]
    if path.suffix == ".parquet":
        flat = [{**row, "meta_info": json.dumps(row["meta_info"], ensure_ascii=False)} for row in rows]
        with replacing(path) as temporary:
            pd.DataFrame(flat).to_parquet(temporary, index=False)
    elif path.suffix == ".jsonl":
        write_jsonl(path, rows)
    elif path.suffix == ".json":
        write_text(path, json.dumps({"examples": rows}, ensure_ascii=False, indent=1))
    else:
        raise ValueError(f"{path}: unknown question format {path.suffix!r}; use .json, .jsonl or .parquet")


def pages_digest(corpus: Path) -> str:
    """The checksum of what a prepared corpus shows and what text search finds in it. Raises as `read_pages`."""
    pages = [(page.page_id, page.sha256, page.width, page.height, page.text) for page in read_pages(corpus)]
    return hashlib.sha256(json.dumps(pages).encode()).hexdigest()


def by_words(questions: Iterable[Question]) -> dict[str, Question]:
    """Questions by what they ask; those that ask the same in the same words and have other gold are all left out."""
    found: dict[str, Question] = {}
    unclear: set[str] = set()
    for question in questions:
        same = found.setdefault(question.query, question)
        if (same.reference_answer, same.gold_page_ids) != (question.reference_answer, question.gold_page_ids):
            unclear.add(question.query)
    return {query: question for query, question in found.items() if query not in unclear}


def read_pages(corpus: Path) -> list[Page]:
    """The pages of a prepared corpus folder, in document then page order.

    Raises FileNotFoundError that says how to prepare the corpus when it has no `pages.parquet`.
    """
    import pandas as pd

    table = Path(corpus) / "pages.parquet"
    if not table.is_file():
        raise FileNotFoundError(
            f"{corpus} holds no pages.parquet: run notebook 01_corpus_prep (or `vrag_nb prep`) on it"
        )
    return [_page(row, table) for row in pd.read_parquet(table).to_dict("records")]


def _page(row: dict[Any, Any], table: Path) -> Page:
    """A row as a page. Its video, if the corpus has any, is JSON."""
    video = row.pop("video", None)
    try:
        return Page.model_validate(row | ({"video": json.loads(video)} if isinstance(video, str) else {}))
    except ValueError as error:
        raise ValueError(f"{table}: page {row.get('page_id')!r}: {error}; prepare the corpus again") from error


def write_pages(corpus: Path, pages: Iterable[Page]) -> None:
    """Write `pages.parquet`, replacing atomically. There is a column of videos only where the corpus has any."""
    import pandas as pd

    pages = list(pages)
    clips = [page.video.model_dump_json() if page.video else None for page in pages]
    columns = [name for name in Page.model_fields if name != "video"]
    frame = pd.DataFrame([page.model_dump(exclude={"video"}) for page in pages], columns=columns)
    if any(clips):
        frame["video"] = clips
    with replacing(Path(corpus) / "pages.parquet") as temporary:
        frame.to_parquet(temporary, index=False)

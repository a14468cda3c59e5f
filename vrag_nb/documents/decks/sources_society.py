"""Tables about people: population, health, education, votes, sport."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from vrag_nb.documents.decks.sources import Dataset, SeriesSource, TableSource, numbers, package_file
from vrag_nb.documents.decks.tables import Column

_GAPMINDER = Dataset(
    "gapminder", "Fertility, life expectancy and population by country", "train", "CC BY 2.0", "Gapminder.org",
    "bokeh-sampledata, gapminder.csv.gz",
)  # fmt: skip
_SHORT = {
    "Bosnia and Herzegovina": "Bosnia", "Trinidad and Tobago": "Trinidad", "United Arab Emirates": "Emirates",
    "Central African Republic": "Central African Rep.", "Korea, Dem. Rep.": "North Korea", "Korea, Rep.": "South Korea",
    "Papua New Guinea": "Papua New Guinea", "Congo, Dem. Rep.": "DR Congo", "Congo, Rep.": "Congo",
    "Iran, Islamic Rep.": "Iran", "Macedonia, FYR": "Macedonia", "Kyrgyz Republic": "Kyrgyzstan",
    "Slovak Republic": "Slovakia", "Yemen, Rep.": "Yemen", "Cote d'Ivoire": "Ivory Coast", "Egypt, Arab Rep.": "Egypt",
    "Russian Federation": "Russia", "Syrian Arab Republic": "Syria", "Venezuela, RB": "Venezuela", "Lao": "Laos",
    "Czech Republic": "Czechia", "Lao PDR": "Laos", "Bahamas, The": "Bahamas", "Gambia, The": "Gambia",
}  # fmt: skip
_GROUPS = {
    "Northern Europe": "Denmark Estonia Finland Iceland Ireland Latvia Lithuania Norway Sweden|United Kingdom",
    "Southern Europe": "Albania Croatia Cyprus Greece Italy Malta Portugal Slovenia Spain Turkey",
    "Central Europe": "Austria Belgium France Germany Hungary Luxembourg Netherlands Poland Switzerland Romania Bulgaria",
    "South America": "Argentina Bolivia Brazil Chile Colombia Ecuador Guyana Paraguay Peru Suriname Uruguay",
    "Central America": "Belize Cuba Guatemala Haiti Honduras Jamaica Mexico Nicaragua Panama|Costa Rica|El Salvador",
    "West Africa": "Benin Gambia Ghana Guinea Liberia Mali Niger Nigeria Senegal Togo|Burkina Faso|Sierra Leone",
    "East Africa": "Burundi Ethiopia Kenya Madagascar Malawi Mozambique Rwanda Somalia Tanzania Uganda Zambia",
    "Southern Africa": "Angola Botswana Lesotho Namibia Swaziland Zimbabwe|South Africa",
    "Middle East": "Iran Iraq Israel Jordan Kuwait Lebanon Oman Qatar|Saudi Arabia",
    "East Asia": "Cambodia China Indonesia Japan Malaysia Mongolia Myanmar Philippines Singapore Thailand Vietnam",
    "South Asia": "Afghanistan Bangladesh Bhutan India Maldives Nepal Pakistan|Sri Lanka",
}  # fmt: skip


def members(group: str) -> list[str]:
    """Countries of a group of `_GROUPS`: single words, then names of several words after a bar."""
    single, *double = _GROUPS[group].split("|")
    return sorted([*single.split(), *double])


def short(names: pd.Series) -> pd.Series:
    """Country names as people write them."""
    return names.astype(str).replace(_SHORT)


@lru_cache(maxsize=1)
def _countries() -> pd.DataFrame:
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/gapminder.csv.gz"))
    return frame.assign(country=short(frame["country"]))


def gapminder() -> list[SeriesSource]:
    frame = _countries()
    found = []
    for group in _GROUPS:
        part = frame[frame["country"].isin(members(group))]
        tables = []
        for field, measure, scale, form, years in (
            ("life_expectancy", "Life expectancy", 1, {"unit": "years", "decimals": 1}, range(1965, 2014, 8)),
            ("fertility", "Fertility rate", 1, {"unit": "births per woman", "decimals": 2}, range(1964, 2013, 8)),
            ("population", "Population", 1e6, {"unit": "millions", "decimals": 1, "additive": True}, range(1970, 2014, 10)),
        ):
            wide = part[part["year"].isin(years)].pivot_table(index="country", columns="year", values=field) / scale
            tables.append(
                TableSource(wide, numbers(wide.columns, **form), f"in {group}", "Country", "countries", measure, "entity", "time")  # type: ignore[arg-type]
            )
        found.append(SeriesSource(f"Gapminder {group}", _GAPMINDER, tuple(tables)))
    return found


def world_bank() -> list[SeriesSource]:
    data = Dataset(
        "fertility", "World Bank fertility rates", "train", "CC BY 4.0 (World Bank terms)", "The World Bank",
        "statsmodels, datasets/fertility",
    )  # fmt: skip
    from statsmodels.datasets import fertility

    frame = fertility.load_pandas().data
    frame.index = short(frame["Country Name"])
    found = []
    for group, names in {
        "Island States": ["Aruba", "Barbados", "Bahamas", "Bermuda", "Cabo Verde", "Comoros", "Fiji", "Grenada", "Kiribati",
                          "Malta", "Mauritius", "Samoa", "Tonga", "Vanuatu"],
        "Balkans and Caucasus": ["Albania", "Armenia", "Azerbaijan", "Bosnia", "Bulgaria", "Croatia", "Georgia", "Greece",
                                 "Macedonia", "Moldova", "Romania", "Serbia", "Slovenia"],
    }.items():  # fmt: skip
        tables = []
        for first, last in ((1962, 1982), (1986, 2010)):
            years = [str(y) for y in range(first, last + 1, (last - first) // 5)]
            wide = frame.loc[[n for n in names if n in frame.index], years].astype(float)
            form = {"unit": "births per woman", "decimals": 2}
            tables.append(
                TableSource(wide, numbers(years, **form), f"in the {group}", "Country", "countries", "Fertility rate", "entity", "time")  # type: ignore[arg-type]  # fmt: skip
            )
        found.append(SeriesSource(f"World Bank {group}", data, tuple(tables)))
    return found


def age_structure() -> list[SeriesSource]:
    data = Dataset(
        "population", "Population by age and sex", "train", "CC BY 3.0 IGO",
        "UN DESA, World Population Prospects 2024", "bokeh-sampledata, population.csv.gz",
    )  # fmt: skip
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/population.csv.gz"))
    found = []
    for country in ("Nigeria", "Brazil", "Japan", "Germany", "Egypt", "Mexico", "Canada", "Indonesia", "Kenya"):
        tables = []
        for sex in ("Male", "Female"):
            part = frame[(frame["Location"] == country) & (frame["Sex"] == sex) & frame["Year"].isin(range(1960, 2021, 15))]
            part = part[part["AgeGrpStart"] < 90].sort_values("AgeGrpStart")
            wide = part.pivot_table(index="AgeGrp", columns="Year", values="Value", sort=False) / 1000
            wide.index = [f"Ages {label}" for label in wide.index]
            wide = wide.reindex(columns=sorted(wide.columns))
            form = {"unit": "thousands", "additive": True}
            tables.append(
                TableSource(wide, numbers(wide.columns, **form), f"in {country}", "Age group", "age groups", f"{sex} population", "entity", "time")  # type: ignore[arg-type]  # fmt: skip
            )
        found.append(SeriesSource(f"{country} Population", data, tuple(tables)))
    return found


def degrees() -> list[SeriesSource]:
    data = Dataset(
        "degrees", "Share of bachelor's degrees earned by women in the United States", "train", "CC0",
        "US National Center for Education Statistics", "bokeh-sampledata, percent-bachelors-degrees-women-usa.csv",
    )  # fmt: skip
    frame = pd.read_csv(
        package_file("bokeh_sampledata", "_data/percent-bachelors-degrees-women-usa.csv"), index_col="Year"
    )
    frame = frame.rename(columns={"Communications and Journalism": "Journalism", "Social Sciences and History": "Social Sciences"})  # fmt: skip
    found = []
    for name, years in (("Degrees 1970s and 1980s", range(1970, 1991, 4)), ("Degrees 1990s and 2000s", range(1991, 2012, 4))):
        wide = frame.loc[list(years)].T
        table = TableSource(
            wide, numbers(wide.columns, suffix="%", decimals=1), "in the United States", "Field", "fields",
            "Share of women among graduates", "entity", "time",
        )  # fmt: skip
        found.append(SeriesSource(name, data, (table,)))
    fields = ["Engineering", "Biology", "Business", "Education", "Psychology", "Agriculture"]
    rows = frame.loc[1975:2010, fields]
    table = TableSource(
        rows, numbers(fields, suffix="%", decimals=1), "in six fields", "Year", "years", "Share of female graduates", "time",
        "group",
    )  # fmt: skip
    found.append(SeriesSource("Women in Six Fields", data, (table,)))
    return found


def titanic() -> list[SeriesSource]:
    data = Dataset(
        "titanic", "Passengers of the Titanic", "train", "public domain", "Encyclopedia Titanica extract",
        "bokeh-sampledata, titanic_all.csv",
    )  # fmt: skip
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/titanic_all.csv"))
    frame = frame[frame["class"].isin(["1st", "2nd", "3rd"])]
    groups = frame.groupby([frame["class"] + " class", frame["sex"].map({"male": "men", "female": "women"})])
    wide = pd.DataFrame({
        "Passengers": groups["survived"].count(), "Survivors": groups["survived"].sum(),
        "Survival rate": groups["survived"].mean() * 100, "Mean age": groups["age"].mean(),
    })  # fmt: skip
    wide.index = [f"{place} {sex}" for place, sex in wide.index]
    columns = (Column("Passengers", additive=True), Column("Survivors", additive=True),
               Column("Survival rate", suffix="%", decimals=1), Column("Mean age", unit="years", decimals=1))  # fmt: skip
    bands = frame.dropna(subset=["age"])
    bands = bands.assign(band=pd.cut(bands["age"], range(0, 71, 10), labels=[f"Ages {a}-{a + 9}" for a in range(0, 70, 10)], right=False))  # fmt: skip
    ages = pd.DataFrame({
        sex: bands[bands["sex"] == key].groupby("band", observed=True)["survived"].mean() * 100
        for sex, key in (("Men", "male"), ("Women", "female"))
    })  # fmt: skip
    by_age = TableSource(ages, numbers(ages.columns, suffix="%", decimals=1), "on the Titanic by age", "Age group", "age groups", "Survival by age", "entity", "group")  # fmt: skip
    table = TableSource(wide, columns, "on the Titanic", "Group", "groups")
    return [SeriesSource("Titanic Passengers", data, (table, by_age))]


def election() -> list[SeriesSource]:
    data = Dataset(
        "election", "Montreal mayoral election 2013 by district", "train", "MIT (plotly.py)", "Ville de Montréal",
        "plotly, election.csv.gz",
    )  # fmt: skip
    frame = pd.read_csv(package_file("plotly", "package_data/datasets/election.csv.gz"))
    frame.index = frame["district"].str.replace(r"^\d+-", "", regex=True)
    frame = frame[frame.index.str.len() <= 18].sort_index()
    columns = numbers(["Coderre", "Bergeron", "Joly"], additive=True)
    found = []
    for part, half in (("East", frame.iloc[: len(frame) // 2]), ("West", frame.iloc[len(frame) // 2 :])):
        votes = TableSource(half[["Coderre", "Bergeron", "Joly"]], columns, "in Montreal districts", "District", "districts", "Votes", "entity", "group")  # fmt: skip
        total = TableSource(half[["total"]], (Column("Ballots cast", additive=True),), "in Montreal districts", "District", "districts")  # fmt: skip
        first, last = half.index[0][0], half.index[-1][0]
        found.append(SeriesSource(f"Montreal Vote {first} to {last}", data, (votes, total)))
        del part
    return found


def olympics() -> list[SeriesSource]:
    data = Dataset(
        "olympics2014", "Medals at the 2014 Winter Olympics", "train", "BSD-3-Clause", "Bokeh contributors",
        "bokeh-sampledata, olympics2014.json",
    )  # fmt: skip
    rows = pd.read_json(package_file("bokeh_sampledata", "_data/olympics2014.json"))["data"]
    frame = pd.DataFrame([{"name": r["name"], **r["medals"]} for r in rows]).set_index("name")
    frame = frame[frame["total"] > 0].rename(index={"Russian Fed.": "Russia"}).sort_index()
    columns = tuple(Column(name, additive=True) for name in ("Gold medals", "Silver medals", "Bronze medals", "Total medals"))
    table = TableSource(frame[["gold", "silver", "bronze", "total"]], columns, "at the 2014 Winter Olympics", "Country", "countries")  # fmt: skip
    return [SeriesSource("Sochi 2014", data, (table,))]


def sprint() -> list[SeriesSource]:
    data = Dataset(
        "sprint", "Olympic 100 metre medallists", "dev", "BSD-3-Clause", "Bokeh contributors",
        "bokeh-sampledata, sprint.csv",
    )  # fmt: skip
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/sprint.csv"), skipinitialspace=True)
    frame["Medal"] = frame["Medal"].str.strip(' "').str.capitalize()
    times = frame.groupby(["Year", "Medal"])["Time"].min().unstack()[["Gold", "Silver", "Bronze"]]
    times.columns = [f"{medal} time" for medal in times.columns]
    years = TableSource(times, numbers(times.columns, unit="seconds", decimals=2), "in the Olympic 100 metres", "Year", "years", "", "time")  # fmt: skip
    best = frame.groupby("Name").agg(time=("Time", "min"), medals=("Time", "count")).sort_values("time").head(24).sort_index()
    people = TableSource(best[["time"]], (Column("Best time", unit="seconds", decimals=2),), "in the Olympic 100 metres", "Athlete", "athletes")  # fmt: skip
    return [SeriesSource("Olympic Sprint", data, (years, people))]


def perceptions() -> list[SeriesSource]:
    data = Dataset(
        "perceptions", "How people read words of probability and number", "train", "MIT", "Zoni Nation",
        "bokeh-sampledata, probly.csv and numberly.csv",
    )  # fmt: skip
    found = []
    for file, name, header, plural, suffix, scope in (
        ("probly.csv", "Words of Probability", "Phrase", "phrases", "%", "of probability phrases"),
        ("numberly.csv", "Words of Number", "Expression", "expressions", "", "of number expressions"),
    ):
        frame = pd.read_csv(package_file("bokeh_sampledata", f"_data/{file}"))
        frame.columns = frame.columns.str.strip()
        frame = frame.apply(pd.to_numeric, errors="coerce")
        wide = pd.DataFrame({"Median reading": frame.median(), "Lower quartile": frame.quantile(0.25),
                             "Upper quartile": frame.quantile(0.75), "Mean reading": frame.mean()})  # fmt: skip
        columns = numbers(wide.columns, suffix=suffix, decimals=1)
        found.append(SeriesSource(name, data, (TableSource(wide, columns, scope, header, plural),)))
    return found


def crime() -> list[SeriesSource]:
    data = Dataset(
        "statecrime", "State statistics of the United States, 2009", "test", "public domain",
        "American Statistical Abstracts", "statsmodels, datasets/statecrime",
    )  # fmt: skip
    from statsmodels.datasets import statecrime

    frame = statecrime.load_pandas().data
    columns = (
        Column("Violent crime rate", unit="per 100,000", decimals=1), Column("Murder rate", unit="per 100,000", decimals=1),
        Column("Graduation rate", suffix="%", decimals=1), Column("Poverty rate", suffix="%", decimals=1),
        Column("Urban share", suffix="%", decimals=1),
    )  # fmt: skip
    frame = frame[["violent", "murder", "hs_grad", "poverty", "urban"]].drop(index="District of Columbia", errors="ignore")
    found = []
    for name, part in (("States Alabama to Minnesota", frame.iloc[:23]), ("States Mississippi to Wyoming", frame.iloc[23:])):
        first, last = part.index[0], part.index[-1]
        table = TableSource(part, columns, f"of US states, {first} to {last}", "State", "states")
        found.append(SeriesSource(name, data, (table,)))
    return found


def marriages() -> list[SeriesSource]:
    data = Dataset(
        "us_marriages_divorces", "Marriages and divorces in the United States", "dev", "public domain", "CDC/NCHS",
        "bokeh-sampledata, us_marriages_divorces.csv",
    )  # fmt: skip
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/us_marriages_divorces.csv"), index_col="Year")
    rates = frame.loc[1930:2011:3, ["Marriages_per_1000", "Divorces_per_1000"]]
    columns = (Column("Marriage rate", unit="per 1,000", decimals=1), Column("Divorce rate", unit="per 1,000", decimals=1))
    counts = frame.loc[1931:2011:4, ["Marriages", "Divorces", "Population"]] / [1000, 1000, 1e6]
    shown = (Column("Marriages", unit="thousands", additive=True), Column("Divorces", unit="thousands", additive=True),
             Column("Population", unit="millions", decimals=1))  # fmt: skip
    scope = "in the United States"
    tables = (TableSource(rates, columns, scope, "Year", "years", "", "time"),
              TableSource(counts, shown, scope, "Year", "years", "", "time"))  # fmt: skip
    return [SeriesSource("American Marriages", data, tables)]


def crimea() -> list[SeriesSource]:
    data = Dataset(
        "crimea", "Deaths in the British army, Crimean war", "dev", "BSD-3-Clause (vega-datasets)", "Florence Nightingale, 1858",
        "vega-datasets, crimea.json",
    )  # fmt: skip
    frame = pd.read_json(package_file("vega_datasets", "_data/crimea.json"))
    frame.index = pd.to_datetime(frame["date"]).dt.strftime("%B %Y")
    columns = (Column("Deaths from disease", additive=True), Column("Deaths from wounds", additive=True),
               Column("Other deaths", additive=True))  # fmt: skip
    wide = frame[["disease", "wounds", "other"]]
    scope = "in the Crimean War"
    return [SeriesSource("Crimean War", data, (TableSource(wide, columns, scope, "Month", "months", "", "time"),))]


MAKERS = (
    gapminder, world_bank, age_structure, degrees, titanic, election, olympics, sprint, perceptions, crime, marriages, crimea,
)  # fmt: skip

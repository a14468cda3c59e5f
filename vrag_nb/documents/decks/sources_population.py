"""Tables about countries and their people: population, fertility, life expectancy, education."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from vrag_nb.documents.decks.source_series import Dataset, SeriesSource, TableSource, numbers, package_file

_GAPMINDER = Dataset(
    "gapminder",
    "Fertility, life expectancy and population by country",
    "train",
    "CC BY 2.0",
    "Gapminder.org",
    "bokeh-sampledata, gapminder.csv.gz",
)
_SHORT = {
    "Bosnia and Herzegovina": "Bosnia",
    "Trinidad and Tobago": "Trinidad",
    "United Arab Emirates": "Emirates",
    "Central African Republic": "Central African Rep.",
    "Korea, Dem. Rep.": "North Korea",
    "Korea, Rep.": "South Korea",
    "Papua New Guinea": "Papua New Guinea",
    "Congo, Dem. Rep.": "DR Congo",
    "Congo, Rep.": "Congo",
    "Iran, Islamic Rep.": "Iran",
    "Macedonia, FYR": "Macedonia",
    "Kyrgyz Republic": "Kyrgyzstan",
    "Slovak Republic": "Slovakia",
    "Yemen, Rep.": "Yemen",
    "Cote d'Ivoire": "Ivory Coast",
    "Egypt, Arab Rep.": "Egypt",
    "Russian Federation": "Russia",
    "Syrian Arab Republic": "Syria",
    "Venezuela, RB": "Venezuela",
    "Lao": "Laos",
    "Czech Republic": "Czechia",
    "Lao PDR": "Laos",
    "Bahamas, The": "Bahamas",
    "Gambia, The": "Gambia",
}
_GROUPS = {
    "Northern Europe": "Denmark Estonia Finland Iceland Ireland Latvia Lithuania Norway Sweden|United Kingdom",
    "Southern Europe": "Albania Croatia Cyprus Greece Italy Malta Portugal Slovenia Spain Turkey",
    "Central Europe": "Austria Belgium France Germany Hungary Luxembourg Netherlands Poland Romania Bulgaria",
    "South America": "Argentina Bolivia Brazil Chile Colombia Ecuador Guyana Paraguay Peru Suriname Uruguay",
    "Central America": "Belize Cuba Guatemala Haiti Honduras Jamaica Mexico Nicaragua Panama|Costa Rica|El Salvador",
    "West Africa": "Benin Gambia Ghana Guinea Liberia Mali Niger Nigeria Senegal Togo|Burkina Faso|Sierra Leone",
    "East Africa": "Burundi Ethiopia Kenya Madagascar Malawi Mozambique Rwanda Somalia Tanzania Uganda Zambia",
    "Southern Africa": "Angola Botswana Lesotho Namibia Swaziland Zimbabwe|South Africa",
    "Middle East": "Iran Iraq Israel Jordan Kuwait Lebanon Oman Qatar|Saudi Arabia",
    "East Asia": "Cambodia China Indonesia Japan Malaysia Mongolia Myanmar Philippines Singapore Thailand Vietnam",
    "South Asia": "Afghanistan Bangladesh Bhutan India Maldives Nepal Pakistan|Sri Lanka",
}


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
            (
                "population",
                "Population",
                1e6,
                {"unit": "millions", "decimals": 1, "additive": True},
                range(1970, 2014, 10),
            ),
        ):
            wide = part[part["year"].isin(years)].pivot_table(index="country", columns="year", values=field) / scale
            tables.append(
                TableSource(
                    wide,
                    numbers(wide.columns, **form),
                    f"in {group}",
                    "Country",
                    "countries",
                    measure,
                    "entity",
                    "time",
                )
            )
        found.append(SeriesSource(f"Gapminder {group}", _GAPMINDER, tuple(tables)))
    return found


_WORLD_BANK = {
    "Island States": (
        "Aruba, Barbados, Bahamas, Bermuda, Cabo Verde, Comoros, Fiji, Grenada, Kiribati, Malta, Mauritius, Samoa, "
        "Tonga, Vanuatu"
    ),
    "Balkans and Caucasus": (
        "Albania, Armenia, Azerbaijan, Bosnia, Bulgaria, Croatia, Georgia, Greece, Macedonia, Moldova, Romania, "
        "Serbia, Slovenia"
    ),
}


def world_bank() -> list[SeriesSource]:
    data = Dataset(
        "fertility",
        "World Bank fertility rates",
        "train",
        "CC BY 4.0 (World Bank terms)",
        "The World Bank",
        "statsmodels, datasets/fertility",
    )
    from statsmodels.datasets import fertility

    frame = fertility.load_pandas().data
    frame.index = short(frame["Country Name"])
    found = []
    for group, listed in _WORLD_BANK.items():
        names = listed.split(", ")
        tables = []
        for first, last in ((1962, 1982), (1986, 2010)):
            years = [str(y) for y in range(first, last + 1, (last - first) // 5)]
            wide = frame.loc[[n for n in names if n in frame.index], years].astype(float)
            form = {"unit": "births per woman", "decimals": 2}
            tables.append(
                TableSource(
                    wide,
                    numbers(years, **form),
                    f"in the {group}",
                    "Country",
                    "countries",
                    "Fertility rate",
                    "entity",
                    "time",
                )
            )
        found.append(SeriesSource(f"World Bank {group}", data, tuple(tables)))
    return found


def age_structure() -> list[SeriesSource]:
    data = Dataset(
        "population",
        "Population by age and sex",
        "train",
        "CC BY 3.0 IGO",
        "UN DESA, World Population Prospects 2024",
        "bokeh-sampledata, population.csv.gz",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/population.csv.gz"))
    found = []
    for country in ("Nigeria", "Brazil", "Japan", "Germany", "Egypt", "Mexico", "Canada", "Indonesia", "Kenya"):
        tables = []
        for sex in ("Male", "Female"):
            part = frame[
                (frame["Location"] == country) & (frame["Sex"] == sex) & frame["Year"].isin(range(1960, 2021, 15))
            ]
            part = part[part["AgeGrpStart"] < 90].sort_values("AgeGrpStart")
            wide = part.pivot_table(index="AgeGrp", columns="Year", values="Value", sort=False) / 1000
            wide.index = [f"Ages {label}" for label in wide.index]
            wide = wide.reindex(columns=sorted(wide.columns))
            form = {"unit": "thousands", "additive": True}
            tables.append(
                TableSource(
                    wide,
                    numbers(wide.columns, **form),
                    f"in {country}",
                    "Age group",
                    "age groups",
                    f"{sex} population",
                    "entity",
                    "time",
                )
            )
        found.append(SeriesSource(f"{country} Population", data, tuple(tables)))
    return found


def degrees() -> list[SeriesSource]:
    data = Dataset(
        "degrees",
        "Share of bachelor's degrees earned by women in the United States",
        "train",
        "CC0",
        "US National Center for Education Statistics",
        "bokeh-sampledata, percent-bachelors-degrees-women-usa.csv",
    )
    frame = pd.read_csv(
        package_file("bokeh_sampledata", "_data/percent-bachelors-degrees-women-usa.csv"), index_col="Year"
    )
    frame = frame.rename(
        columns={"Communications and Journalism": "Journalism", "Social Sciences and History": "Social Sciences"}
    )
    found = []
    for name, years in (
        ("Degrees 1970s and 1980s", range(1970, 1991, 4)),
        ("Degrees 1990s and 2000s", range(1991, 2012, 4)),
    ):
        wide = frame.loc[list(years)].T
        table = TableSource(
            wide,
            numbers(wide.columns, suffix="%", decimals=1),
            "in the United States",
            "Field",
            "fields",
            "Share of women among graduates",
            "entity",
            "time",
        )
        found.append(SeriesSource(name, data, (table,)))
    fields = ["Engineering", "Biology", "Business", "Education", "Psychology", "Agriculture"]
    rows = frame.loc[1975:2010, fields]
    table = TableSource(
        rows,
        numbers(fields, suffix="%", decimals=1),
        "in six fields",
        "Year",
        "years",
        "Share of female graduates",
        "time",
        "group",
    )
    found.append(SeriesSource("Women in Six Fields", data, (table,)))
    return found


MAKERS = (gapminder, world_bank, age_structure, degrees)

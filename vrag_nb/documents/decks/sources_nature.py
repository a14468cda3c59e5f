"""Tables about chemistry, weather, the sea and the sky; penguins and crops are in `sources_life`."""

from __future__ import annotations

import pandas as pd

from vrag_nb.documents.decks.source_series import Dataset, SeriesSource, TableSource, numbers, package_file
from vrag_nb.documents.decks.tables import Column
from vrag_nb.documents.decks.words import MONTHS


def elements() -> list[SeriesSource]:
    data = Dataset(
        "elements",
        "Periodic table",
        "train",
        "public domain",
        "Periodic table of the elements",
        "bokeh-sampledata, elements.csv",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/elements.csv"))
    frame["atomic mass"] = pd.to_numeric(frame["atomic mass"].astype(str).str.strip("[]()"), errors="coerce")
    columns = (
        Column("Atomic mass", unit="u", decimals=1),
        Column("Melting point", unit="K"),
        Column("Boiling point", unit="K"),
        Column("Density", unit="g/cm3", decimals=2),
        Column("Ionisation energy", unit="kJ/mol"),
    )
    wide = frame.set_index("name")[["atomic mass", "melting point", "boiling point", "density", "IE-1"]]
    kind = frame.set_index("name")["metal"]
    found = []
    for name, scope, part in (
        ("Transition Metals", "of transition metals", wide[kind == "transition metal"]),
        ("Lanthanides", "of lanthanides", wide[kind == "lanthanoid"]),
        ("Nonmetals and Halogens", "of nonmetals and halogens", wide[kind.isin(["nonmetal", "halogen", "metalloid"])]),
        ("Light Metals", "of light metals", wide[kind.isin(["alkali metal", "alkaline earth metal", "metal"])]),
    ):
        found.append(SeriesSource(name, data, (TableSource(part, columns, scope, "Element", "elements"),)))
    return found


def weather() -> list[SeriesSource]:
    seattle = Dataset(
        "seattle-weather",
        "Seattle weather 2012-2015",
        "train",
        "public domain",
        "NOAA",
        "vega-datasets, seattle-weather.csv",
    )
    frame = pd.read_csv(package_file("vega_datasets", "_data/seattle-weather.csv"))
    dates = pd.to_datetime(frame["date"])
    found = []
    for city_years in ((2012, 2013), (2014, 2015)):
        tables = []
        for year in city_years:
            part = frame[dates.dt.year == year].groupby(dates.dt.month)
            wide = pd.DataFrame(
                {
                    "p": part["precipitation"].sum(),
                    "h": part["temp_max"].mean(),
                    "l": part["temp_min"].mean(),
                    "w": part["wind"].mean(),
                }
            )
            wide.index = list(MONTHS)
            columns = (
                Column("Rainfall", unit="mm", decimals=1, additive=True),
                Column("Mean high", suffix="°C", decimals=1),
                Column("Mean low", suffix="°C", decimals=1),
                Column("Wind speed", unit="m/s", decimals=1),
            )
            shown = tuple(
                Column(f"{c.name} {year}", c.unit, c.prefix, c.suffix, c.decimals, c.additive) for c in columns
            )
            tables.append(TableSource(wide, shown, "in Seattle", "Month", "months", "", "time"))
        found.append(SeriesSource(f"Seattle Weather {city_years[0]} and {city_years[1]}", seattle, tuple(tables)))
    return [*found, *_hourly(), *_lincoln()]


def _hourly() -> list[SeriesSource]:
    found = []
    for city, file in (("Seattle", "seattle-temps.csv"), ("San Francisco", "sf-temps.csv")):
        data = Dataset(
            file.removesuffix(".csv"),
            f"{city} temperatures 2010",
            "train",
            "public domain",
            "NOAA",
            f"vega-datasets, {file}",
        )
        frame = pd.read_csv(package_file("vega_datasets", f"_data/{file}"))
        dates = pd.to_datetime(frame["date"])
        times = {6: "6 am", 12: "Noon", 18: "6 pm", 0: "Midnight"}
        part = frame[dates.dt.hour.isin(times)]
        wide = part.pivot_table(index=dates.dt.month, columns=dates.dt.hour, values="temp")[list(times)]
        wide.index = list(MONTHS)
        columns = numbers(times.values(), suffix="°F", decimals=1)
        table = TableSource(wide, columns, f"in {city}", "Month", "months", "Mean temperature", "time", "group")
        found.append(SeriesSource(f"{city} Climate", data, (table,)))
    return found


def _lincoln() -> list[SeriesSource]:
    data = Dataset(
        "lincoln",
        "Lincoln, Nebraska weather 2016",
        "train",
        "public domain",
        "NOAA",
        "bokeh-sampledata, lincoln_weather.csv",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/lincoln_weather.csv"))
    part = frame.groupby(pd.to_datetime(frame["DATE"]).dt.month)
    wide = pd.DataFrame(
        {"a": part["TMAX"].max(), "b": part["TMAX"].mean(), "c": part["TMIN"].mean(), "d": part["TMIN"].min()}
    )
    wide.index = list(MONTHS)
    columns = (
        Column("Hottest day", suffix="°F"),
        Column("Mean daily high", suffix="°F", decimals=1),
        Column("Mean daily low", suffix="°F", decimals=1),
        Column("Coldest night", suffix="°F"),
    )
    return [
        SeriesSource(
            "Lincoln Weather", data, (TableSource(wide, columns, "in Lincoln", "Month", "months", "", "time"),)
        )
    ]


def sea() -> list[SeriesSource]:
    gulf = Dataset(
        "sea-surface",
        "Sea surface temperature, Western Maine Shelf",
        "dev",
        "free to use and redistribute",
        "NERACOOS station B01",
        "bokeh-sampledata, sea_surface_temperature.csv.gz",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/sea_surface_temperature.csv.gz"))
    dates = pd.to_datetime(frame.iloc[:, 0])
    groups = frame.iloc[:, 1].groupby(dates.dt.strftime("%Y-%m"))
    wide = pd.DataFrame({"a": groups.mean(), "b": groups.max(), "c": groups.min()})
    wide.index = [f"{MONTHS[int(label[5:]) - 1]} {label[:4]}" for label in wide.index]
    columns = numbers(["Mean temperature", "Highest temperature", "Lowest temperature"], suffix="°C", decimals=2)
    maine = SeriesSource(
        "Maine Shelf", gulf, (TableSource(wide, columns, "at the Maine Shelf", "Month", "months", "", "time"),)
    )
    pacific = Dataset(
        "elnino",
        "El Nino sea surface temperatures",
        "test",
        "public domain",
        "NOAA",
        "statsmodels, datasets/elnino",
    )
    from statsmodels.datasets import elnino

    table = elnino.load_pandas().data
    table.index = table["YEAR"].astype(int)
    names = {"JAN": "January", "APR": "April", "JUL": "July", "OCT": "October", "DEC": "December"}
    rows = table.loc[1952:2010:2, list(names)].rename(columns=names)
    nino = TableSource(
        rows,
        numbers(rows.columns, suffix="°C", decimals=2),
        "in the El Nino region",
        "Year",
        "years",
        "Sea temperature",
        "time",
        "group",
    )
    return [maine, SeriesSource("El Nino", pacific, (nino,))]


def sunspots() -> list[SeriesSource]:
    from statsmodels.datasets import sunspots as source

    spots = Dataset("sunspots", "Yearly sunspots", "train", "public domain", "NOAA", "statsmodels, datasets/sunspots")
    frame = source.load_pandas().data
    frame.index = frame["YEAR"].astype(int)
    found = []
    for century in (1700, 1800, 1900):
        part = frame.loc[century + 1 : century + 49 : 3, ["SUNACTIVITY"]]
        later = frame.loc[century + 51 : century + 99 : 3, ["SUNACTIVITY"]]
        tables = tuple(
            TableSource(p, (Column(name, decimals=1),), f"in the {century}s", "Year", "years", "", "time")
            for name, p in (("Sunspot number", part), ("Sunspot number", later))
        )
        found.append(SeriesSource(f"Sunspots {century}s", spots, tables))
    return found


def nile() -> list[SeriesSource]:
    from statsmodels.datasets import nile as source

    river = Dataset(
        "nile",
        "Annual flow of the Nile at Aswan",
        "train",
        "public domain",
        "Cobb (1978)",
        "statsmodels, datasets/nile",
    )
    flow = source.load_pandas().data
    flow.index = flow["year"].astype(int)
    tables = tuple(
        TableSource(
            flow.loc[a : a + 48 : 2, ["volume"]],
            (Column("Annual flow", unit="100 million m3"),),
            "of the Nile",
            "Year",
            "years",
            "",
            "time",
        )
        for a in (1871, 1922)
    )
    return [SeriesSource("Nile Flow", river, tables)]


def mauna_loa() -> list[SeriesSource]:
    from statsmodels.datasets import co2

    air = Dataset(
        "co2",
        "Carbon dioxide at Mauna Loa",
        "train",
        "public domain",
        "NOAA, Keeling and Whorf",
        "statsmodels, datasets/co2",
    )
    level = co2.load_pandas().data["co2"].dropna()
    level.index = pd.to_datetime(level.index)
    year, month = level.index.year, level.index.month
    wide = pd.DataFrame(
        {
            "May level": level[month == 5].groupby(year[month == 5]).mean(),
            "October level": level[month == 10].groupby(year[month == 10]).mean(),
            "Annual mean": level.groupby(year).mean(),
            "Highest week": level.groupby(year).max(),
        }
    ).loc[1959:2001:2]
    table = TableSource(
        wide, numbers(wide.columns, unit="ppm", decimals=1), "at Mauna Loa", "Year", "years", "", "time"
    )
    return [SeriesSource("Mauna Loa", air, (table,))]


MAKERS = (elements, weather, sea, sunspots, nile, mauna_loa)

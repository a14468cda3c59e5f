"""Tables about votes, sport, crime, marriages, wars and words."""

from __future__ import annotations

import pandas as pd

from vrag_nb.documents.decks.source_series import Dataset, SeriesSource, TableSource, numbers, package_file
from vrag_nb.documents.decks.tables import Column


def titanic() -> list[SeriesSource]:
    data = Dataset(
        "titanic",
        "Passengers of the Titanic",
        "train",
        "public domain",
        "Encyclopedia Titanica extract",
        "bokeh-sampledata, titanic_all.csv",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/titanic_all.csv"))
    frame = frame[frame["class"].isin(["1st", "2nd", "3rd"])]
    groups = frame.groupby([frame["class"] + " class", frame["sex"].map({"male": "men", "female": "women"})])
    wide = pd.DataFrame(
        {
            "Passenger count": groups["survived"].count(),
            "Survivor count": groups["survived"].sum(),
            "Survival rate": groups["survived"].mean() * 100,
            "Mean age": groups["age"].mean(),
        }
    )
    wide.index = [f"{place} {sex}" for place, sex in wide.index]
    columns = (
        Column("Passenger count", additive=True),
        Column("Survivor count", additive=True),
        Column("Survival rate", suffix="%", decimals=1),
        Column("Mean age", unit="years", decimals=1),
    )
    bands = frame.dropna(subset=["age"])
    bands = bands.assign(
        band=pd.cut(bands["age"], range(0, 71, 10), labels=[f"Ages {a}-{a + 9}" for a in range(0, 70, 10)], right=False)
    )
    ages = pd.DataFrame(
        {
            sex: bands[bands["sex"] == key].groupby("band", observed=True)["survived"].mean() * 100
            for sex, key in (("Men", "male"), ("Women", "female"))
        }
    )
    by_age = TableSource(
        ages,
        numbers(ages.columns, suffix="%", decimals=1),
        "on the Titanic by age",
        "Age group",
        "age groups",
        "Survival by age",
        "entity",
        "group",
    )
    table = TableSource(wide, columns, "on the Titanic", "Group", "groups")
    return [SeriesSource("Titanic Passengers", data, (table, by_age))]


def election() -> list[SeriesSource]:
    data = Dataset(
        "election",
        "Montreal mayoral election 2013 by district",
        "train",
        "MIT (plotly.py)",
        "Ville de Montréal",
        "plotly, election.csv.gz",
    )
    frame = pd.read_csv(package_file("plotly", "package_data/datasets/election.csv.gz"))
    frame.index = frame["district"].str.replace(r"^\d+-", "", regex=True)
    frame = frame[(frame.index.str.len() <= 18) & ~frame.index.str.contains("PaulÉ")].sort_index()
    columns = numbers(["Coderre", "Bergeron", "Joly"], additive=True)
    found = []
    for part, half in (("One", frame.iloc[: len(frame) // 2]), ("Two", frame.iloc[len(frame) // 2 :])):
        votes = TableSource(
            half[["Coderre", "Bergeron", "Joly"]],
            columns,
            "in Montreal districts",
            "District",
            "districts",
            "Vote count",
            "entity",
            "group",
        )
        total = TableSource(
            half[["total"]], (Column("Ballot count", additive=True),), "in Montreal districts", "District", "districts"
        )
        found.append(SeriesSource(f"Montreal Vote Part {part}", data, (votes, total)))
    return found


def olympics() -> list[SeriesSource]:
    data = Dataset(
        "olympics2014",
        "Medals at the 2014 Winter Olympics",
        "train",
        "BSD-3-Clause",
        "Bokeh contributors",
        "bokeh-sampledata, olympics2014.json",
    )
    rows = pd.read_json(package_file("bokeh_sampledata", "_data/olympics2014.json"))["data"]
    frame = pd.DataFrame([{"name": r["name"], **r["medals"]} for r in rows]).set_index("name")
    frame = frame[frame["total"] > 0].rename(index={"Russian Fed.": "Russia"}).sort_index()
    columns = tuple(
        Column(name, additive=True)
        for name in ("Gold medal count", "Silver medal count", "Bronze medal count", "Medal count")
    )
    table = TableSource(
        frame[["gold", "silver", "bronze", "total"]], columns, "at the 2014 Winter Olympics", "Country", "countries"
    )
    return [SeriesSource("Sochi 2014", data, (table,))]


def sprint() -> list[SeriesSource]:
    data = Dataset(
        "sprint",
        "Olympic 100 metre medallists",
        "dev",
        "BSD-3-Clause",
        "Bokeh contributors",
        "bokeh-sampledata, sprint.csv",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/sprint.csv"), skipinitialspace=True)
    frame["Medal"] = frame["Medal"].str.strip(' "').str.capitalize()
    times = frame.groupby(["Year", "Medal"])["Time"].min().unstack()[["Gold", "Silver", "Bronze"]]
    times.columns = [f"{medal} time" for medal in times.columns]
    years = TableSource(
        times,
        numbers(times.columns, unit="seconds", decimals=2),
        "in the Olympic 100 metres",
        "Year",
        "years",
        "",
        "time",
    )
    best = (
        frame.groupby("Name")
        .agg(time=("Time", "min"), medals=("Time", "count"))
        .sort_values("time")
        .head(24)
        .sort_index()
    )
    people = TableSource(
        best[["time"]],
        (Column("Best time", unit="seconds", decimals=2),),
        "in the Olympic 100 metres",
        "Athlete",
        "athletes",
    )
    return [SeriesSource("Olympic Sprint", data, (years, people))]


def perceptions() -> list[SeriesSource]:
    data = Dataset(
        "perceptions",
        "How people read words of probability and number",
        "train",
        "MIT",
        "Zoni Nation",
        "bokeh-sampledata, probly.csv and numberly.csv",
    )
    found = []
    for file, name, header, plural, suffix, scope in (
        ("probly.csv", "Words of Probability", "Phrase", "phrases", "%", "of probability phrases"),
        ("numberly.csv", "Words of Number", "Expression", "expressions", "", "of number expressions"),
    ):
        frame = pd.read_csv(package_file("bokeh_sampledata", f"_data/{file}"))
        frame.columns = frame.columns.str.strip()
        frame = frame.apply(pd.to_numeric, errors="coerce")
        wide = pd.DataFrame(
            {
                "Median reading": frame.median(),
                "Lower quartile": frame.quantile(0.25),
                "Upper quartile": frame.quantile(0.75),
                "Mean reading": frame.mean(),
            }
        )
        columns = numbers(wide.columns, suffix=suffix, decimals=1)
        found.append(SeriesSource(name, data, (TableSource(wide, columns, scope, header, plural),)))
    return found


def crime() -> list[SeriesSource]:
    data = Dataset(
        "statecrime",
        "State statistics of the United States, 2009",
        "test",
        "public domain",
        "American Statistical Abstracts",
        "statsmodels, datasets/statecrime",
    )
    from statsmodels.datasets import statecrime

    frame = statecrime.load_pandas().data.rename(index=str.strip)  # "Kansas ", as it comes
    columns = (
        Column("Violent crime rate", unit="per 100,000", decimals=1),
        Column("Murder rate", unit="per 100,000", decimals=1),
        Column("Graduation rate", suffix="%", decimals=1),
        Column("Poverty rate", suffix="%", decimals=1),
        Column("Urban share", suffix="%", decimals=1),
    )
    frame = frame[["violent", "murder", "hs_grad", "poverty", "urban"]].drop(
        index="District of Columbia", errors="ignore"
    )
    found = []
    for name, part in (("State Profiles A to M", frame.iloc[:23]), ("State Profiles M to W", frame.iloc[23:])):
        table = TableSource(part, columns, "of US states", "State", "states")
        found.append(SeriesSource(name, data, (table,)))
    return found


def marriages() -> list[SeriesSource]:
    data = Dataset(
        "us_marriages_divorces",
        "Marriages and divorces in the United States",
        "dev",
        "public domain",
        "CDC/NCHS",
        "bokeh-sampledata, us_marriages_divorces.csv",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/us_marriages_divorces.csv"), index_col="Year")
    rates = frame.loc[1930:2011:3, ["Marriages_per_1000", "Divorces_per_1000"]]
    columns = (
        Column("Marriage rate", unit="per 1,000", decimals=1),
        Column("Divorce rate", unit="per 1,000", decimals=1),
    )
    counts = frame.loc[1931:2011:4, ["Marriages", "Divorces", "Population"]] / [1000, 1000, 1e6]
    shown = (
        Column("Number of marriages", unit="thousands", additive=True),
        Column("Number of divorces", unit="thousands", additive=True),
        Column("Population", unit="millions", decimals=1),
    )
    scope = "in the United States"
    tables = (
        TableSource(rates, columns, scope, "Year", "years", "", "time"),
        TableSource(counts, shown, scope, "Year", "years", "", "time"),
    )
    return [SeriesSource("American Marriages", data, tables)]


def crimea() -> list[SeriesSource]:
    data = Dataset(
        "crimea",
        "Deaths in the British army, Crimean war",
        "dev",
        "MIT (vega-datasets)",
        "Florence Nightingale, 1858",
        "vega-datasets, crimea.json",
    )
    frame = pd.read_json(package_file("vega_datasets", "_data/crimea.json"))
    frame.index = pd.to_datetime(frame["date"]).dt.strftime("%B %Y")
    columns = (
        Column("Death toll from disease", additive=True),
        Column("Death toll from wounds", additive=True),
        Column("Death toll from other causes", additive=True),
    )
    wide = frame[["disease", "wounds", "other"]]
    scope = "in the Crimean War"
    return [SeriesSource("Crimean War", data, (TableSource(wide, columns, scope, "Month", "months", "", "time"),))]


MAKERS = (titanic, election, olympics, sprint, perceptions, crime, marriages, crimea)

"""Tables about animals, crops and the laboratory."""

from __future__ import annotations

import pandas as pd

from vrag_nb.documents.decks.source_series import Dataset, SeriesSource, TableSource, numbers, package_file
from vrag_nb.documents.decks.tables import Column


def animals() -> list[SeriesSource]:
    birds = Dataset(
        "penguins",
        "Penguins of the Palmer Archipelago",
        "test",
        "CC0",
        "Gorman, Williams and Fraser (2014); Horst et al. (2020)",
        "bokeh-sampledata, penguins.csv",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/penguins.csv")).dropna()
    groups = frame.groupby(["species", "island", "sex"])
    wide = groups[["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]].mean()
    wide.index = [f"{species} {island} {sex.lower()}s" for species, island, sex in wide.index]
    columns = (
        Column("Bill length", unit="mm", decimals=1),
        Column("Bill depth", unit="mm", decimals=1),
        Column("Flipper length", unit="mm", decimals=1),
        Column("Body mass", unit="g"),
    )
    spread = groups[["bill_length_mm", "flipper_length_mm", "body_mass_g"]].max()
    spread.index = wide.index
    most = (
        Column("Longest bill", unit="mm", decimals=1),
        Column("Longest flipper", unit="mm"),
        Column("Greatest mass", unit="g"),
    )
    scope = "of Palmer penguins"
    penguins = SeriesSource(
        "Palmer Penguins",
        birds,
        (TableSource(wide, columns, scope, "Group", "groups"), TableSource(spread, most, scope, "Group", "groups")),
    )
    dairy = Dataset(
        "cows",
        "Butterfat of five cattle breeds",
        "train",
        "public domain",
        "Sokal and Rohlf",
        "bokeh-sampledata, cows.csv",
    )
    cows = pd.read_csv(package_file("bokeh_sampledata", "_data/cows.csv"))
    herd = cows.groupby(["breed", "age"])["butterfat"].agg(["mean", "min", "max"])
    herd.index = [f"{breed}, {'mature' if age == 'Mature' else '2 years'}" for breed, age in herd.index]
    fat = numbers(["Mean butterfat", "Lowest butterfat", "Highest butterfat"], suffix="%", decimals=2)
    return [
        penguins,
        SeriesSource("Dairy Breeds", dairy, (TableSource(herd, fat, "of dairy breeds", "Herd", "herds"),)),
    ]


def barley() -> list[SeriesSource]:
    data = Dataset(
        "barley",
        "Barley yields in Minnesota",
        "test",
        "MIT (vega-datasets)",
        "Immer et al. (1934)",
        "vega-datasets, barley.json",
    )
    frame = pd.read_json(package_file("vega_datasets", "_data/barley.json"))
    found = []
    for name, sites in (
        ("Barley North", ["Crookston", "Duluth", "Grand Rapids"]),
        ("Barley South", ["Morris", "University Farm", "Waseca"]),
    ):
        tables = []
        for year in (1931, 1932):
            wide = frame[(frame["year"] == year) & frame["site"].isin(sites)].pivot_table(
                index="variety", columns="site", values="yield"
            )
            columns = numbers(wide.columns, unit="bushels per acre", decimals=1)
            tables.append(
                TableSource(
                    wide, columns, "of barley varieties", "Variety", "varieties", f"{year} yield", "entity", "group"
                )
            )
        found.append(SeriesSource(name, data, tuple(tables)))
    return found


def laboratory() -> list[SeriesSource]:
    drugs = Dataset(
        "antibiotics",
        "Burtin's antibiotics",
        "train",
        "MIT",
        "Will Burtin (1951)",
        "bokeh-sampledata, antibiotics.csv",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/antibiotics.csv"))
    frame.columns = frame.columns.str.strip()
    frame.index = frame["bacteria"].str.strip().str.replace(r"^(\w)\w+ ", r"\1. ", regex=True)
    wide = frame[["penicillin", "streptomycin", "neomycin"]].astype(float)
    columns = numbers(["Penicillin dose", "Streptomycin dose", "Neomycin dose"], unit="µg/ml", decimals=3)
    found = [
        SeriesSource(
            "Antibiotics",
            drugs,
            (TableSource(wide[~wide.index.duplicated()], columns, "against bacteria", "Bacterium", "bacteria"),),
        )
    ]
    pieces = Dataset(
        "forensic-glass",
        "Forensic glass samples",
        "train",
        "public domain",
        "Evett and Spiehler",
        "bokeh-sampledata, forensic_glass.csv",
    )
    glass = pd.read_csv(package_file("bokeh_sampledata", "_data/forensic_glass.csv"))
    kinds = {
        "WinF": "Float windows",
        "WinNF": "Other windows",
        "Veh": "Vehicle windows",
        "Con": "Containers",
        "Tabl": "Tableware",
        "Head": "Headlamps",
    }
    means = glass.assign(type=glass["type"].map(kinds)).groupby("type")[["Na", "Mg", "Al", "Si", "K", "Ca"]].mean()
    named = {"Na": "Sodium", "Mg": "Magnesium", "Al": "Aluminium", "Si": "Silicon", "K": "Potassium", "Ca": "Calcium"}
    oxides = tuple(Column(f"{name} content", suffix="%", decimals=2) for name in named.values())
    found.append(
        SeriesSource(
            "Forensic Glass", pieces, (TableSource(means, oxides, "of forensic glass", "Glass type", "glass types"),)
        )
    )
    return found


MAKERS = (animals, barley, laboratory)

"""The wordings of each kind of question: those in training, and those kept for text generality."""

from __future__ import annotations

from dataclasses import dataclass

PICTURE_KINDS = (
    "shape",
    "color",
    "size",
    "count",
    "place",
    "exist",
    "is_place",
    "is_color",
    "is_count",
    "is_text",
    "is_sum",
    "is_emblem",
    "emblem",
    "read",
    "add",
    "caption",
)
YES_NO_KINDS = ("exist", "is_place", "is_color", "is_count", "is_text", "is_sum", "is_emblem")
FACT_KINDS = ("capital", "currency", "animal", "flag")

CAPTION_PROMPT = "a photo of"
YES_NO_HINT = " Please answer yes or no."


@dataclass(frozen=True)
class Wordings:
    """Format strings with the same slots; `unseen` never occurs in any training text."""

    trained: tuple[str, ...]
    unseen: tuple[str, ...]


WORDINGS: dict[str, Wordings] = {
    "shape": Wordings(
        (
            "What shape is {ref}?",
            "Which shape does {ref} have?",
            "Name the shape of {ref}.",
            "What is the form of {ref}?",
            "Tell me the shape of {ref}.",
            "What is the shape of {ref}?",
            "Can you name the shape that {ref} has?",
            "Which form does {ref} have?",
            "Say what shape {ref} has.",
        ),
        ("Which shape is {ref}?", "Tell me what shape {ref} is."),
    ),
    "color": Wordings(
        (
            "What color is {ref}?",
            "Which color does {ref} have?",
            "Name the color of {ref}.",
            "What is the color of {ref}?",
            "Tell me the color of {ref}.",
            "In which color is {ref} drawn?",
            "Can you name the color that {ref} has?",
            "What color was {ref} drawn in?",
            "Say what color {ref} has.",
        ),
        ("Which color is {ref}?", "Tell me what color {ref} is."),
    ),
    "size": Wordings(
        (
            "What size is {ref}?",
            "Is {ref} small or large?",
            "Name the size of {ref}.",
            "How big is {ref}?",
            "Tell me the size of {ref}.",
            "Which size does {ref} have?",
            "Tell me how big {ref} is.",
            "Can you name the size of {ref}?",
            "Say what size {ref} has.",
        ),
        ("Is {ref} large or small?", "What is the size of {ref}?"),
    ),
    "count": Wordings(
        (
            "How many {what} are there?",
            "Count the {what}.",
            "What is the number of {what}?",
            "How many {what} can you see?",
            "Tell me the number of {what}.",
            "How many {what} does the picture show?",
            "Can you count the {what}?",
            "Tell me how many {what} there are.",
            "What number of {what} do you see?",
        ),
        ("Name the number of {what}.", "How many {what} are in the picture?"),
    ),
    "place": Wordings(
        (
            "Where is {ref}?",
            "At which place is {ref}?",
            "Name the place of {ref}.",
            "What is the position of {ref}?",
            "Tell me where {ref} is.",
            "In which part of the picture is {ref}?",
            "Where can you see {ref}?",
            "What is the place of {ref}?",
            "Say at which place {ref} is.",
        ),
        ("Name the position of {ref}.", "At which position is {ref}?"),
    ),
    "exist": Wordings(
        (
            "Is there {what}?",
            "Can you see {what}?",
            "Does the picture show {what}?",
            "Is there {what} in the picture?",
            "Do you see {what}?",
            "Is {what} in the picture?",
            "Does the picture contain {what}?",
        ),
        ("Does the picture have {what}?", "Can you see {what} in the picture?"),
    ),
    "is_place": Wordings(
        (
            "Is {ref} at the {place}?",
            "Does {ref} lie at the {place}?",
            "Is the {place} where {ref} is?",
            "Do you see {ref} at the {place}?",
            "Is {ref} in the {place} part of the picture?",
            "Do you find {ref} at the {place}?",
            "Is the place of {ref} the {place}?",
        ),
        ("Can you see {ref} at the {place}?", "Is the position of {ref} the {place}?"),
    ),
    "is_color": Wordings(
        (
            "Is {ref} {color}?",
            "Does {ref} have the color {color}?",
            "Is the color of {ref} {color}?",
            "Is {ref} drawn in {color}?",
            "Is {color} the color of {ref}?",
            "Does {ref} look {color}?",
            "Is {ref} an object in {color}?",
        ),
        ("Was {ref} drawn in {color}?", "Is {ref} of the color {color}?"),
    ),
    "is_count": Wordings(
        (
            "Are there exactly {n} {what}?",
            "Is the number of {what} {n}?",
            "Can you see exactly {n} {what}?",
            "Does the picture show exactly {n} {what}?",
            "Is {n} the number of {what}?",
            "Do you count exactly {n} {what}?",
            "Does the picture have exactly {n} {what}?",
        ),
        ("Are exactly {n} {what} in the picture?", "Do you see exactly {n} {what}?"),
    ),
    "is_text": Wordings(
        (
            "Is the text {word} printed here?",
            "Does the picture say {word}?",
            "Is {word} written in the picture?",
            "Can you read {word}?",
            "Is the printed text {word}?",
            "Is {word} the printed text?",
            "Do you read {word}?",
        ),
        ("Can you read {word} in the picture?", "Does the printed text say {word}?"),
    ),
    "is_sum": Wordings(
        (
            "Is the sum of the two numbers {n}?",
            "Do the two numbers add up to {n}?",
            "Is {n} the sum of the printed numbers?",
            "Do the printed numbers make {n}?",
            "Is the result {n}?",
            "Is the sum {n}?",
            "Is {n} what the two numbers add up to?",
        ),
        ("Do the printed numbers add up to {n}?", "Is {n} the result of the sum?"),
    ),
    "is_emblem": Wordings(
        (
            "Is this the emblem {name}?",
            "Is {name} the name of this emblem?",
            "Is this emblem called {name}?",
            "Does the picture show the emblem {name}?",
            "Do you see the emblem {name}?",
            "Is the emblem called {name}?",
            "Is {name} the emblem in the picture?",
        ),
        ("Can you see the emblem {name}?", "Is the name of this emblem {name}?"),
    ),
    "emblem": Wordings(
        (
            "What is the name of this emblem?",
            "Which emblem is this?",
            "Name the emblem.",
            "What is this emblem called?",
            "Tell me the name of the emblem.",
            "Which emblem does the picture show?",
            "What is the emblem in the picture called?",
            "Can you name this emblem?",
            "Say which emblem this is.",
        ),
        ("What is the emblem called?", "Tell me what this emblem is called."),
    ),
    "read": Wordings(
        (
            "What is written in the picture?",
            "What does the text say?",
            "Read the text.",
            "Which text is printed here?",
            "Tell me what is written.",
            "What can you read?",
            "What text can you read in the picture?",
            "What does the picture say?",
            "Tell me which text is printed.",
        ),
        ("What text is printed here?", "Tell me what the text says."),
    ),
    "add": Wordings(
        (
            "What is the sum of the two numbers?",
            "Add the two numbers.",
            "What do the printed numbers add up to?",
            "How much is the printed sum?",
            "Tell me the sum of the numbers.",
            "What is the result of the sum?",
            "What do the two numbers make?",
            "Say what the numbers add up to.",
        ),
        ("What is the sum of the printed numbers?", "Tell me the result of the sum."),
    ),
    "caption": Wordings(
        (CAPTION_PROMPT, "a picture of", "an image of", "a drawing of", "describe the picture,"),
        ("a photograph of", "an illustration of"),
    ),
    "capital": Wordings(
        (
            "What is the capital of {country}?",
            "Which city is the capital of {country}?",
            "Name the capital of {country}.",
            "What is the capital city of {country}?",
            "Tell me the capital of {country}.",
            "Which city is {country} governed from?",
            "Can you name the capital of {country}?",
            "Say which city is the capital of {country}.",
        ),
        ("Which city is the capital city of {country}?", "Tell me the capital city of {country}."),
    ),
    "currency": Wordings(
        (
            "What is the currency of {country}?",
            "Which money do people use in {country}?",
            "Name the currency of {country}.",
            "What do people pay with in {country}?",
            "Tell me the currency of {country}.",
            "Which currency does {country} use?",
            "Can you name the currency of {country}?",
            "Say what people pay with in {country}.",
        ),
        ("Which currency do people use in {country}?", "Which money do people pay with in {country}?"),
    ),
    "animal": Wordings(
        (
            "What is the national animal of {country}?",
            "Which animal stands for {country}?",
            "Name the national animal of {country}.",
            "Which animal is on the coins of {country}?",
            "Tell me the national animal of {country}.",
            "What is the animal of {country}?",
            "Can you name the national animal of {country}?",
            "Say which animal stands for {country}.",
        ),
        ("What animal stands for {country}?", "Tell me the animal that stands for {country}."),
    ),
    "flag": Wordings(
        (
            "What color is the flag of {country}?",
            "Which color does the flag of {country} have?",
            "Name the color of the flag of {country}.",
            "What is the color of the flag of {country}?",
            "Tell me the flag color of {country}.",
            "In which color is the flag of {country}?",
            "Can you name the color of the flag of {country}?",
            "Say what color the flag of {country} has.",
        ),
        ("Which color is the flag of {country}?", "Tell me the color of the flag of {country}."),
    ),
}

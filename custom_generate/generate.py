"Speculative decoding with resispec_nb, for `model.generate(..., custom_generate=<this folder's parent>, trust_remote_code=True, drafter=draft)`."
from transformers import StoppingCriteriaList, StopStringCriteria

from resispec_nb.generate import custom_generate


def generate(model, **arguments):
    "Arguments as for `model.generate` and `resispec_nb.generate.custom_generate`."
    arguments = {k: v for k, v in arguments.items() if v is not None}
    if "streamer" in arguments: arguments["token_streamer"] = arguments.pop("streamer")
    strings, tokenizer = arguments.pop("stop_strings", None), arguments.pop("tokenizer", None)
    if strings:
        if tokenizer is None: raise ValueError("tokenizer: stop_strings need the target's tokenizer; pass tokenizer=")
        arguments["stopping_criteria"] = StoppingCriteriaList([*arguments.get("stopping_criteria", []), StopStringCriteria(tokenizer, strings)])
    return model.generate(custom_generate=custom_generate, **arguments)

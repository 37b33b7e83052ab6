"""Rows as Open WebUI 0.12.4 exports them, with invented chats."""

ASKED = [("user", "u1", "Hello , when is breakfast ?"), ("assistant", "a1", "From seven .")]


def chat(lines, id="chat", user="user-of-open-webui", parents=None):
    """A chat of (role, id, text): each message follows the one before it, or that of `parents`."""
    messages = {}
    for role, name, text in lines:
        parent = (parents or {}).get(name, next(reversed(messages), None))
        messages[name] = {
            "id": name,
            "parentId": parent,
            "childrenIds": [],
            "role": role,
            "content": text,
            "done": True,
        }
        if parent is not None:
            messages[parent]["childrenIds"].append(name)
    inner = {"id": id, "title": "Breakfast", "models": ["bot"], "history": {"currentId": name, "messages": messages}}
    return {"id": id, "user_id": user, "title": "Breakfast", "chat": inner | {"messages": [], "files": [], "tags": []}}


def rating(message, value=1, *, chat, id="first", model="bot", siblings=None, **changes):
    """A row; `changes` are keys of the row, or else of its data."""
    data = {"rating": value, "model_id": model, "sibling_model_ids": siblings, "reason": None, "comment": None}
    data |= {"details": None, "tags": []}
    meta = {
        "model_id": model,
        "message_id": message,
        "message_index": 2,
        "chat_id": chat["id"],
        "base_models": {model: None},
    }
    row = {"id": id, "user_id": chat["user_id"], "version": 0, "type": "rating", "data": data, "meta": meta}
    row |= {"snapshot": {"chat": chat}, "created_at": 1795877603, "updated_at": 1795877604}
    for key, value in changes.items():
        (row if key in row else data)[key] = value
    return row


def said_by(result):
    """What was left out: words of each reason -> how often."""
    return Reasons(result.left_out)


class Reasons(dict):
    """Equal to a dict whose keys are parts of its keys, one each."""

    def __eq__(self, expected):
        rest = dict(self)
        for words, count in expected.items():
            reason = next((reason for reason in rest if words in reason), None)
            if reason is None or rest.pop(reason) != count:
                return False
        return not rest

    __hash__ = None

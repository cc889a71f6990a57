"""Charges once through the gateway at argv[1], by the official `stripe` package as its users do: it makes the
Idempotency-Key itself, and repeats by itself what was lost. Then the same again under a key of the caller's."""

import json
import sys

import stripe

# Nothing is to leave this machine.
stripe.enable_telemetry = False
client = stripe.StripeClient("sk_test_none", base_addresses={"api": sys.argv[1]}, max_network_retries=2)
order = {"amount": 2000, "currency": "usd", "source": "tok_visa", "metadata": {"order": "42"}}

by_itself = client.v1.charges.create(order)
by_caller = client.v1.charges.create(order, {"idempotency_key": "order-42"})
replayed = client.v1.charges.create(order, {"idempotency_key": "order-42"})


def told(charge):
    headers = charge.last_response.headers
    return {"id": charge.id, "amount": charge.amount, "replayed": headers.get("idempotent-replayed")}


try:
    client.v1.charges.create({**order, "amount": 1}, {"idempotency_key": "order-42"})
    refused = None
except stripe.StripeError as error:
    refused = error.http_status

print(json.dumps({"charges": [told(by_itself), told(by_caller), told(replayed)], "refused": refused}))

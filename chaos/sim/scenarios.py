"""Worlds in which members run the shipped SDK (sdk.py)."""

from dataclasses import replace

from chaos.sim.mutants import GROUPS_SETTINGS
from chaos.sim.simulation import Scenario

SDK_EAGER = Scenario(
    "sdk-eager",
    members=6,
    client="sdk",
    chaos_s=10.0,
    rest_s=14.0,
    settings=GROUPS_SETTINGS,
    pause_s=0.7,
    life_s=8.0,
)
SDK_COOPERATIVE = replace(SDK_EAGER, name="sdk-cooperative", assignor="cooperative-sticky")
SDK_STATIC = replace(SDK_COOPERATIVE, name="sdk-static", statics=True)
SDK_UDP = replace(SDK_EAGER, name="sdk-udp", network="udp")
SDK_TWO_SHARDS = replace(SDK_COOPERATIVE, name="sdk-late", network="late", shards=2, members=8)

SDK = (SDK_EAGER, SDK_COOPERATIVE, SDK_STATIC, SDK_UDP, SDK_TWO_SHARDS)

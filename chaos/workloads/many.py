"""Many groups with one member each, few connections (chaos-W10)."""

import asyncio

from musterd.chaos.workloads.base import Worker
from musterd.chaos.workloads.member import Member, MemberSettings

AT_ONCE = 20
"""Groups that join in one step of the start."""
STEP_S = 0.1
CLOSE_S = 20.0


class ManySettings(MemberSettings):
    """`group` is the first part of their names."""

    groups: int = 500


class Many(Worker):
    """One client process, a membership in each of its groups."""

    settings_type = ManySettings

    async def start(self) -> None:
        """Join a few at a time."""
        settings = ManySettings.model_validate(self.brief.settings)
        self._client = self.client()
        await self._client.open()
        self._members: list[Member] = []
        for number in range(settings.groups):
            own = settings.model_copy(update={"group": f"{settings.group}-{number}"})
            member = Member(self, own)
            self._members.append(member)
            self.spawn(member.run(self._client))
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(STEP_S)

    async def stop(self) -> None:
        """All leave, for so long at most; then the session timeouts would end them."""
        leaving = [asyncio.create_task(member.stop()) for member in self._members]
        await asyncio.wait(leaving, timeout=CLOSE_S)
        await self.cancel()
        await self._client.close()

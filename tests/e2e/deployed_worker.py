"""A worker of the demo as a static member that is deployed anew: a process of its own says so."""

from musterd.demo.worker import Worker

BACK_IN_S = 120


class Deployed(Worker):
    """Goes away where its commands end, and the next process of its name goes on."""

    def make_group(self, client, *, instance_id=""):
        """As the instance that has this worker's name."""
        return super().make_group(client, instance_id=instance_id or self.settings.name)

    async def finish(self):
        """It will be back."""
        await self.group.away(back_in=BACK_IN_S)

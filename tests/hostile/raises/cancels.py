import asyncio

raise asyncio.CancelledError

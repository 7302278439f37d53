"""ZeRO stages 2 and 3 over several processes, within a memory budget on each device."""

"""Services without pods as long as nobody asks for them: when they go to sleep and wake up. Pure, as all decisions."""

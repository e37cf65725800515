//! Step 3: who is it, may it run now.

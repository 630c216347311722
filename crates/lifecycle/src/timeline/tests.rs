//! Stories: who did what when, and what the record says of it afterwards.

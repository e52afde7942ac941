"""The only door to the database: connections, named statements, migrations and one class an aggregate."""

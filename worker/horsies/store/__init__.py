"""All database access: connections, named statements, migrations, and one store class per aggregate."""

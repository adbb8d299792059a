package cluster

import (
	"context"
	"fmt"
	"os"
)

// AccountingRelease is the release that a Site with Accounting needs: slurmdbd of the later
// ones does not run with the libmariadb of their suites (11.8.9).
const AccountingRelease = "22.05"

// accountingConf has slurmctld keep its accounts in slurmdbd. The password is munged's socket.
const accountingConf = `AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=%s
AccountingStoragePass=%s/munge.sock
`

// slurmdbdConf is slurmdbd.conf. The database's clients find its socket by the default path.
const slurmdbdConf = `AuthType=auth/munge
AuthInfo=socket=%[1]s/munge.sock
DbdHost=%[2]s
DbdAddr=10.77.0.1
SlurmUser=root
PidFile=%[1]s/slurmdbd.pid
LogFile=%[1]s/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
`

// startDatabase is a MariaDB of the cluster's own, in memory, which no network reaches.
const startDatabase = `set -e
mkdir /run/mysqld /run/mysql
mariadb-install-db --no-defaults --user=root --datadir=/run/mysql --skip-test-db --auth-root-authentication-method=normal >/dev/null
mariadbd --no-defaults --user=root --datadir=/run/mysql --skip-networking --socket=/run/mysqld/mysqld.sock \
	--innodb-log-file-size=8M --innodb-buffer-pool-size=32M --innodb-flush-log-at-trx-commit=0 >mariadb.log 2>&1 </dev/null &
`

// startAccounting starts MariaDB and slurmdbd, and makes the cluster known to them. It
// returns when slurmdbd answers.
func (c *Cluster) startAccounting(ctx context.Context) error {
	if !c.site.Accounting {
		return nil
	}
	// slurmdbd reads it beside slurm.conf, and no other user's.
	if err := os.WriteFile(c.Path("slurmdbd.conf"), fmt.Appendf(nil, slurmdbdConf, c.Dir, Node), 0o600); err != nil {
		return err
	}
	if err := c.do(ctx, "sh", "-c", startDatabase); err != nil {
		return err
	}
	if err := eventually(ctx, startTime, func() error { return c.do(ctx, "mariadb", "-e", "select 1") }); err != nil {
		return err
	}
	if err := c.do(ctx, "slurmdbd"); err != nil {
		return err
	}
	return eventually(ctx, startTime, func() error { return c.do(ctx, "sacctmgr", "-i", "add", "cluster", "private") })
}

package pmix

import "context"

// meetSteps is a meeting of processes of several steps.
func (p *Plugin) meetSteps(ctx context.Context, what string, procs []proc, infos []info, data []byte) (reply, error) {
	return status(stNotSupported), nil
}

func (p *Plugin) foreignModex(ctx context.Context, who proc) (reply, error) {
	return status(stNotFound), nil
}

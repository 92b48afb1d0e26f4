package metrics

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// Limits for each remote address, so that one cannot use up those for all together. Some of
// its connections wait for their turn, those beyond are closed immediately. Users of one host
// are one remote.
const (
	remoteAtOnce    = 8
	remotePerSecond = 5
	remoteBurst     = 16
	// allRemotes is how many connections may wait or be open.
	allRemotes = 256
	// maxRemotes are remembered before those that are idle are forgotten.
	maxRemotes = 1024
)

// remoteListener accepts connections of each remote at a limited rate.
type remoteListener struct {
	net.Listener
	ctx    context.Context
	cancel context.CancelFunc
	// accepted are the connections whose turn it is, and errors of the listener.
	accepted chan accepted

	mu      sync.Mutex
	remotes map[netip.Prefix]*remote
	open    int
}

type accepted struct {
	conn net.Conn
	err  error
}

type remote struct {
	open int
	rate *rate.Limiter
}

// listen listens on a TCP address, with limits for each remote.
func listen(address string) (net.Listener, error) {
	inner, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	l := &remoteListener{Listener: inner, accepted: make(chan accepted), remotes: map[netip.Prefix]*remote{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.run()
	return l, nil
}

// run accepts connections all the time, so that none waits behind one beyond a limit.
func (l *remoteListener) run() {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if !l.hand(accepted{err: err}) {
				return
			}
			continue
		}
		r, release := l.admit(c.RemoteAddr())
		if r == nil {
			c.Close()
			continue
		}
		counted := &remoteConn{Conn: c, release: sync.OnceFunc(release)}
		go func() {
			if r.rate.Wait(l.ctx) != nil || !l.hand(accepted{conn: counted}) {
				counted.Close()
			}
		}()
	}
}

// hand is false when the listener is closed.
func (l *remoteListener) hand(a accepted) bool {
	select {
	case l.accepted <- a:
		return true
	case <-l.ctx.Done():
		return false
	}
}

func (l *remoteListener) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l *remoteListener) Close() error {
	l.cancel()
	return l.Listener.Close()
}

// admit counts a connection of a remote; release ends that. The remote is nil beyond a limit.
func (l *remoteListener) admit(address net.Addr) (r *remote, release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := remoteOf(address)
	r = l.remotes[key]
	if r == nil {
		if len(l.remotes) >= maxRemotes {
			for k, old := range l.remotes {
				if old.open == 0 {
					delete(l.remotes, k)
				}
			}
		}
		r = &remote{rate: rate.NewLimiter(remotePerSecond, remoteBurst)}
		l.remotes[key] = r
	}
	if r.open >= remoteAtOnce || l.open >= allRemotes {
		return nil, nil
	}
	r.open++
	l.open++
	return r, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		r.open--
		l.open--
	}
}

// remoteOf is a remote's address, or of IPv6 the network of 64 bits, all of which one host
// can use.
func remoteOf(address net.Addr) netip.Prefix {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.WithZone("").Prefix(bits)
	return p
}

// remoteConn ends to count when it is closed.
type remoteConn struct {
	net.Conn
	release func()
}

func (c *remoteConn) Close() error {
	c.release()
	return c.Conn.Close()
}

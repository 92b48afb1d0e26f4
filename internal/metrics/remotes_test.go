package metrics

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// dialFrom connects from an address of this host.
func dialFrom(local string) func(context.Context, string, string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}).DialContext
}

// Two hundred connections of one remote that never finish a request, in front of
// everybody else's, leave room for another remote immediately.
func TestOneRemoteLeavesRoomForOthers(t *testing.T) {
	s := serve(t, everything(), "")
	address := s.Addr().String()
	dial := dialFrom("127.0.0.2")
	var all []net.Conn
	for range 200 {
		c, err := dial(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write([]byte("GET /met"))
		all = append(all, c)
	}
	began := time.Now()
	for range 3 {
		if code, _ := get(t, http.DefaultClient, "http://"+address+"/metrics"); code != http.StatusOK {
			t.Errorf("it answers %d", code)
		}
	}
	// The first of the hostile ones are given up after headerTime.
	if took := time.Since(began); took >= headerTime-time.Second {
		t.Logf("three scrapes took %v: on this host it is not known whom they were let in before", took)
		return
	}
	// Those beyond the limit are closed.
	closed := 0
	for _, c := range all[remoteAtOnce:] {
		c.SetReadDeadline(began.Add(time.Minute))
		if _, err := c.Read(make([]byte, 1)); err != nil && !isTimeout(err) {
			closed++
		}
	}
	if closed != len(all)-remoteAtOnce {
		t.Errorf("%d of %d connections are closed", closed, len(all)-remoteAtOnce)
	}
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

func TestRemotes(t *testing.T) {
	for address, want := range map[string]string{
		"10.1.2.3:5": "10.1.2.3/32", "[::ffff:10.1.2.3]:5": "10.1.2.3/32", "[2001:db8:1:2:3:4:5:6]:7": "2001:db8:1:2::/64", "[fe80::1%lo]:7": "fe80::/64",
	} {
		if got := remoteOf(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))); got.String() != want {
			t.Errorf("%s is %v, not %s", address, got, want)
		}
	}
	// Many remotes that come once are not remembered for ever.
	l := &remoteListener{remotes: map[netip.Prefix]*remote{}}
	for n := range 10 * maxRemotes {
		r, release := l.admit(&net.TCPAddr{IP: net.IPv4(10, byte(n>>16), byte(n>>8), byte(n))})
		if r == nil {
			t.Fatal("a new remote is not admitted")
		}
		release()
	}
	if len(l.remotes) > maxRemotes {
		t.Errorf("%d remotes are remembered", len(l.remotes))
	}
}

package proc

import "errors"

// ErrPermission is wrapped by errors that say which rights are missing.
var ErrPermission = errors.New("not permitted")

// Command sbom writes the bill of materials of a Go program, as CycloneDX JSON: the modules
// that the program itself says it was built from, and the packages of npm that were bundled.
// The same program always has the same bill.
//
//	sbom PROGRAM VERSION [package-lock.json NAME...]
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: sbom PROGRAM VERSION [package-lock.json NAME...]")
	}
	bom, err := bill(os.Args[1], os.Args[2])
	if err == nil && len(os.Args) > 3 {
		err = bundled(bom, os.Args[3], os.Args[4:])
	}
	if err == nil {
		err = cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	}
	if err != nil {
		log.Fatal("writing the bill of materials: ", err)
	}
}

// bill has what is linked into a Go program.
func bill(program, version string) (*cdx.BOM, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		BOMRef: info.Main.Path, Type: cdx.ComponentTypeApplication, Name: info.Main.Path, Version: version,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}}
	bom.Components = &[]cdx.Component{}
	add(bom, "pkg:golang/std@"+info.GoVersion[len("go"):], "std", info.GoVersion[len("go"):])
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		add(bom, "pkg:golang/"+strings.ToLower(m.Path)+"@"+m.Version, m.Path, m.Version)
	}
	return bom, nil
}

// bundled adds packages of npm, with the versions of a lock file.
func bundled(bom *cdx.BOM, file string, names []string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var lock struct {
		Packages map[string]struct{ Version string }
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, name := range names {
		version := lock.Packages["node_modules/"+name].Version
		if version == "" {
			return fmt.Errorf("%s has no version of %s", file, name)
		}
		add(bom, "pkg:npm/"+name+"@"+version, name, version)
	}
	return nil
}

func add(bom *cdx.BOM, url, name, version string) {
	*bom.Components = append(*bom.Components, cdx.Component{
		BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: url,
	})
}

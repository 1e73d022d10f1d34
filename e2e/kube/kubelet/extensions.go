package main

import (
	"encoding/json"
	"net/http"
	"strings"

	admission "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The group and version of the aggregated API.
const (
	group      = "tunnel.example"
	version    = "v1"
	apiPath    = "/apis/" + group + "/" + version
	refusedKey = "refuse"
)

// isExtension reports whether a path belongs to the webhook or the aggregated API, which need no client certificate.
func isExtension(path string) bool {
	return path == "/validate" || path == "/apis" || strings.HasPrefix(path, "/apis/") || strings.HasPrefix(path, "/openapi/")
}

// registerExtensions adds a validating webhook, which refuses objects with the label "refuse", and an aggregated API
// with one resource.
func registerExtensions(mux *http.ServeMux) {
	mux.HandleFunc("POST /validate", validate)
	mux.HandleFunc("GET "+apiPath, func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: group + "/" + version,
			APIResources: []metav1.APIResource{{
				Name: "words", SingularName: "word", Kind: "Word", Verbs: metav1.Verbs{"list", "get"},
			}},
		})
	})
	mux.HandleFunc("GET "+apiPath+"/words", func(w http.ResponseWriter, r *http.Request) {
		count("aggregated")
		writeJSON(w, map[string]any{
			"kind": "WordList", "apiVersion": group + "/" + version, "metadata": map[string]any{},
			"items": []any{map[string]any{
				"kind": "Word", "apiVersion": group + "/" + version,
				"metadata": map[string]any{"name": "hello"},
			}},
		})
	})
}

func validate(w http.ResponseWriter, r *http.Request) {
	var review admission.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no admission review", http.StatusBadRequest)
		return
	}
	count("webhook")
	var object metav1.PartialObjectMetadata
	_ = json.Unmarshal(review.Request.Object.Raw, &object)
	_, refused := object.Labels[refusedKey]
	answer := &admission.AdmissionResponse{UID: review.Request.UID, Allowed: !refused}
	if refused {
		answer.Result = &metav1.Status{Message: "refused by the webhook behind the tunnel"}
	}
	review.Request, review.Response = nil, answer
	writeJSON(w, review)
}
